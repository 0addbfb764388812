"""The layers of a model as structs of the native library."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.models.config import ModelConfig
from outrider.models.frequencies import inverse_frequencies, magnitudes
from outrider.models.layer_kinds import kind_of, layer_kinds
from outrider.models.native_experts import expert_fields
from outrider.models.native_gemma4 import beside_fields, layer_fields, missing_projections
from outrider.models.native_latent import latent_struct
from outrider.models.native_packer import Packer
from outrider.models.native_passes import rotation_table
from outrider.models.native_recurrent import recurrent_struct
from outrider.native.model_structs import LayerStruct, MLPStruct, NormStruct
from outrider.native.structs import WeightStruct

_LACKS_MIXER, _LACKS_MLP = 1, 2
"""Of ``enum outrider_lack``."""


class NativeLayers:
    """Makes the structs of layers; ``held`` keeps the arrays that they point to alive."""

    def __init__(self, config: ModelConfig, packer: Packer) -> None:
        self._config, self._packer = config, packer
        self.held: list[object] = []
        temperature = config.query_temperature
        self._query_scales = None if temperature is None else temperature.factors(config.max_seq_len)
        self._ones = np.ones(config.head_dim, np.float32)
        self.held += [self._query_scales, self._ones]
        self._tables = [
            None if kind.rope is None else self._table(kind.head_dim, *kind.rope) for kind in layer_kinds(config)
        ]

    def _table(self, head_dim: int, theta: float, scaling: Mapping[str, Any]) -> NDArray[np.float32]:
        c = self._config
        turned = head_dim if c.latent is None else c.rope_dim
        inverse = inverse_frequencies(turned, theta, scaling, c.rotary_dim)
        table = rotation_table(inverse, c.max_seq_len, magnitudes(turned, scaling, c.rotary_dim))
        self.held.append(table)
        return table

    def norm(self, name: str) -> NormStruct:
        bias = self._packer.vector(f"{name}.bias").ctypes.data if self._config.layer_norm else None
        return NormStruct(weight=self._packer.vector(f"{name}.weight").ctypes.data, bias=bias)

    def layer(self, i: int) -> LayerStruct:
        c, name = self._config, f"model.layers.{i}."
        if c.alone and c.alone[i] is not None:
            return self._layer_alone(name, i)
        return self.layer_named(name, i, recurrent=c.is_recurrent(i), sparse=c.is_sparse(i))

    def _layer_alone(self, name: str, i: int) -> LayerStruct:
        """A layer that is a mixer or an MLP alone, with the norm before it."""
        c = self._config
        if not c.has_mixer(i):
            norm = self.norm(name + "post_attention_layernorm")
            of_mlp = self._experts(name + "mlp.") if c.is_sparse(i) else {"mlp": self._mlp(name + "mlp.")}
            return LayerStruct(mlp_norm=norm, lacks=_LACKS_MIXER, **of_mlp)
        mixer = self._recurrent(name + "linear_attn.") if c.is_recurrent(i) else self._attention(name + "self_attn.", i)
        return LayerStruct(attention_norm=self.norm(name + "input_layernorm"), lacks=_LACKS_MLP, **mixer)

    def layer_named(self, name: str, like: int, *, recurrent: bool = False, sparse: bool = False) -> LayerStruct:
        """The layer whose weights' names begin with ``name``, which attends as the model's layer ``like`` does."""
        c, vector = self._config, self._packer.vector
        beside = beside_fields(c, name + "mlp.", vector, self.held) if sparse else {}
        return LayerStruct(
            **(self._recurrent(name + "linear_attn.") if recurrent else self._attention(name + "self_attn.", like)),
            **self._layer_norms(name),
            **(self._experts(name + "mlp.") if sparse else {}),
            **({"mlp": self._mlp(name + "mlp.")} if beside or not sparse else {}),
            **beside,
            **layer_fields(c, name, like, vector, self._packer.matrix, self.held),
        )

    def _attention(self, name: str, like: int) -> dict[str, Any]:
        c, parts, table = self._config, self._packer, self._tables[kind_of(self._config, like)]
        scales, temperature = self._query_scales, c.query_temperature
        if temperature is not None and temperature.unrotated and table is not None:
            scales = None
        common = {
            "rotations": None if table is None else table.ctypes.data,
            "window": c.window(like) or 0,
            "chunked": c.chunked_windows and c.window(like) is not None,
            "query_scales": None if scales is None else scales.ctypes.data,
        }
        if c.latent is not None:
            struct = latent_struct(c.latent, name, parts.matrix, parts.vector)
            self.held.append(struct)
            return {"latent": ctypes.addressof(struct), **common}
        missing = missing_projections(c, like)
        normed = "q" if "k" in missing else "qk"
        norms: dict[str, Any] = {
            f"{x}_norm": parts.vector(f"{name}{x}_norm.weight").ctypes.data for x in normed if c.qk_norm
        }
        if c.unit_qk_norm and table is not None:
            norms = dict.fromkeys(("q_norm", "k_norm"), self._ones.ctypes.data)
        return {
            **{x: parts.matrix(f"{name}{x}_proj").struct for x in "qkv" if x not in missing},
            "out": parts.matrix(name + "o_proj").struct,
            "whole_qk_norm": c.whole_qk_norm,
            "rotated_qk_norm": c.rotated_qk_norm or c.unit_qk_norm,
            "gated": c.gated_attention,
            "sinks": parts.own_heads(name + "sinks").ctypes.data if c.attention_sinks else None,
            **norms,
            **common,
        }

    def _recurrent(self, name: str) -> dict[str, Any]:
        assert self._config.recurrent is not None
        struct = recurrent_struct(self._config.recurrent, name, self._packer.matrix, self._packer.numbers, self.held)
        self.held.append(struct)
        return {"recurrent": ctypes.addressof(struct)}

    def _layer_norms(self, name: str) -> dict[str, NormStruct]:
        found = {}
        if self._config.norms != "after":
            found["attention_norm"] = self.norm(name + "input_layernorm")
            found["mlp_norm"] = self.norm(name + "post_attention_layernorm")
        if self._config.norms != "before":
            found["attention_output_norm"] = self.norm(name + "attention_output_norm")
            found["mlp_output_norm"] = self.norm(name + "mlp_output_norm")
        return found

    def _experts(self, name: str) -> dict[str, Any]:
        experts, parts = self._config.experts, self._packer
        assert experts is not None
        return expert_fields(experts, name, self._mlp, parts.whole_matrix, parts.vector, self.held)

    def _mlp(self, name: str) -> MLPStruct:
        """The MLP's matrices. Without a gate, the up projection takes the gate's place, whose output is activated."""
        gated, parts = self._config.gated, self._packer
        return MLPStruct(
            gate=parts.matrix(name + ("gate_proj" if gated else "up_proj")).struct,
            up=parts.matrix(name + "up_proj").struct if gated else WeightStruct(),
            down=parts.matrix(name + "down_proj").struct,
        )
