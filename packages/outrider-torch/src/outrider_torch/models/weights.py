"""The weights of a model's layers, in torch's layout."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from outrider.models.config import ModelConfig
from outrider.models.layer_kinds import kind_of
from outrider_torch.kernels.latent import LatentWeights
from outrider_torch.kernels.layers import Dimensions, LayerWeights
from outrider_torch.kernels.linear import HeadLinear, TorchLinear
from outrider_torch.kernels.mlp import ExpertWeights, MLPWeights
from outrider_torch.kernels.native_tensors import as_tensors
from outrider_torch.kernels.norm import LayerNorm, Norm, RMSNorm
from outrider_torch.kernels.recurrent.layers import RecurrentWeights, unit_norm
from outrider_torch.kernels.rope import pair_rows


class TorchWeights:
    """Makes norms and linear layers on a device, of tensors by their canonical names."""

    def __init__(
        self, config: ModelConfig, tensors: Mapping[str, Tensor], *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._config, self._tensors, self._dtype, self._device = config, tensors, dtype, device

    @property
    def dimensions(self) -> Dimensions:
        c = self._config
        return Dimensions(
            heads=c.num_heads,
            kv_heads=c.num_kv_heads,
            head_dim=c.head_dim,
            activation=c.activation,
            residual_scale=c.residual_scale,
            attention_scale=c.attention_scale,
            attention_cap=c.attention_cap,
            clamped_swiglu=c.clamped_swiglu,
            gated_attention=c.gated_attention,
        )

    def get(self, name: str) -> Tensor:
        tensor: Tensor = as_tensors(self._tensors[name])
        return tensor.to(device=self._device, dtype=self._dtype)

    def norm(self, name: str) -> Norm:
        weight = self.get(f"{name}.weight").clone()  # releases the mapped file
        if self._config.layer_norm:
            return LayerNorm(weight, self.get(f"{name}.bias").clone(), self._config.rms_norm_eps)
        return RMSNorm(weight, self._config.rms_norm_eps)

    def layer(self, i: int) -> LayerWeights:
        c, name = self._config, f"model.layers.{i}."
        state, attention = c.is_recurrent(i), name + "self_attn."
        mix = partial(self._attention, layer=i) if c.latent is None else self._latent
        if not c.has_mixer(i):
            own: dict[str, Any] = dict.fromkeys(("qkv", "q_norm", "k_norm", "out"))
        else:
            own = self._recurrent(name + "linear_attn.") if state else mix(attention)
        if c.has_mlp(i):
            own["mlp"] = self._experts(name + "mlp") if c.is_sparse(i) else self._mlp(name + "mlp")
        else:
            own["mlp"] = None
        norms = c.norms != "after"
        return LayerWeights(
            index=sum(c.has_mixer(other) and c.is_recurrent(other) == state for other in range(i)),
            attention_norm=self.norm(name + "input_layernorm") if norms and c.has_mixer(i) else None,
            mlp_norm=self.norm(name + "post_attention_layernorm") if norms and c.has_mlp(i) else None,
            kind=0 if state or not c.has_mixer(i) else kind_of(c, i),
            attention_output_norm=None if c.norms == "before" else self.norm(name + "attention_output_norm"),
            mlp_output_norm=None if c.norms == "before" else self.norm(name + "mlp_output_norm"),
            **own,
        )

    def _attention(self, name: str, layer: int) -> dict[str, Any]:
        c = self._config
        q_norm, k_norm = (self._head_norm(f"{name}{x}_norm.weight", x) if c.qk_norm else None for x in "qk")
        if c.unit_qk_norm and c.rope(layer) is not None:
            q_norm = k_norm = RMSNorm(torch.ones(c.head_dim, device=self._device), c.rms_norm_eps)
        heads = {0: c.num_heads, 1: c.num_kv_heads}
        return {
            "qkv": self._gated(name)
            if c.gated_attention
            else self._linear(*(f"{name}{x}_proj" for x in "qkv"), heads=heads),
            "q_norm": q_norm,
            "k_norm": k_norm,
            "out": self._linear(name + "o_proj"),
            "whole_qk_norm": c.whole_qk_norm,
            "rotated_qk_norm": c.rotated_qk_norm or c.unit_qk_norm,
            "sinks": self.get(name + "sinks").clone() if c.attention_sinks else None,
        }

    def _latent(self, name: str) -> dict[str, Any]:
        c, of = self._config, self._config.latent
        assert of is not None
        first, inputs = ("q_a_proj", None) if of.query_rank else ("q_proj", c.num_heads)

        def rows(part: str, kind: str, heads: int | None, before: int) -> Tensor:
            """A projection whose heads have rotary pairs behind ``before`` rows; heads None: it has none."""
            if kind == "bias" and f"{name}{part}.bias" not in self._tensors:  # one of two has biases
                return torch.zeros(c.num_heads * of.query_dim, device=self._device, dtype=self._dtype)
            given = self.get(f"{name}{part}.{kind}")
            if heads is None:
                return given
            split = given.unflatten(0, (heads, -1))
            pairs = pair_rows(split[:, before:].flatten(0, 1), heads).unflatten(0, (heads, -1))
            return torch.cat([split[:, :before], pairs], dim=1).flatten(0, 1)

        def both(kind: str) -> Tensor:
            latents = rows("kv_a_proj_with_mqa", kind, 1, of.rank)
            return torch.cat([rows(first, kind, inputs, of.plain), latents])

        biased = f"{name}kv_a_proj_with_mqa.bias" in self._tensors
        weights = LatentWeights(
            of=of,
            norm=RMSNorm(self.get(f"{name}kv_a_layernorm.weight").clone(), of.eps),
            k_b=HeadLinear(self.get(f"{name}k_b_proj.weight").unflatten(0, (c.num_heads, -1))),
            v_b=HeadLinear(self.get(f"{name}v_b_proj.weight").unflatten(0, (c.num_heads, -1))),
            query_norm=RMSNorm(self.get(f"{name}q_a_layernorm.weight").clone(), of.eps) if of.query_rank else None,
            q_b=TorchLinear(rows("q_b_proj", "weight", c.num_heads, of.plain), None) if of.query_rank else None,
        )
        qkv = TorchLinear(both("weight"), both("bias") if biased else None)
        return {"qkv": qkv, "q_norm": None, "k_norm": None, "out": self._linear(name + "o_proj"), "latent": weights}

    def _gated(self, name: str) -> TorchLinear:
        """Queries, keys, values and gates, of projections whose rows are query and gate of each head."""
        c = self._config

        def rows(kind: str) -> Tensor:
            both = self.get(f"{name}q_proj.{kind}").unflatten(0, (c.num_heads, 2, c.head_dim))
            queries, gates = (part.flatten(0, 1) for part in both.unbind(1))
            keys = pair_rows(self.get(f"{name}k_proj.{kind}"), c.num_kv_heads)
            return torch.cat([pair_rows(queries, c.num_heads), keys, self.get(f"{name}v_proj.{kind}"), gates])

        return TorchLinear(rows("weight"), rows("bias") if f"{name}q_proj.bias" in self._tensors else None)

    def _recurrent(self, name: str) -> dict[str, Any]:
        of, device = self._config.recurrent, self._device
        assert of is not None
        eps, state = self._config.rms_norm_eps, of.kind != "short"
        norm = self._floats(name + "norm.weight") if state else None
        grouped = of.kind == "mamba2"
        group = of.values // of.key_heads
        weights = RecurrentWeights(
            of=of,
            taps=self._floats(name + "conv1d.weight").view(of.channels, of.convolution).T.contiguous(),
            taps_bias=self._floats(name + "conv1d.bias") if of.convolution_bias else None,
            decay=self._floats(name + "decay") if state else None,
            dt_bias=self._floats(name + "dt_bias") if state else None,
            norm=None if norm is None else RMSNorm(torch.ones(group, device=device) if grouped else norm, eps),
            norm_weight=norm if grouped else None,
            skip=self._floats(name + "skip") if grouped else None,
            query_norm=unit_norm(of.key_dim, of.key_dim**-0.5, device) if of.kind == "delta" else None,
            key_norm=unit_norm(of.key_dim, 1.0, device) if of.kind == "delta" else None,
        )
        inputs = self._linear(*(name + part for part in of.projections))
        return {
            "qkv": inputs,
            "q_norm": None,
            "k_norm": None,
            "out": self._linear(name + "out_proj"),
            "recurrent": weights,
        }

    def _head_norm(self, name: str, which: str) -> RMSNorm:
        heads = self._config.num_heads if which == "q" else self._config.num_kv_heads
        return RMSNorm(pair_rows(self.get(name), heads if self._config.whole_qk_norm else 1), self._config.rms_norm_eps)

    def _mlp(self, name: str) -> MLPWeights:
        gated = self._config.gated
        inner = (f"{name}.gate_proj", f"{name}.up_proj") if gated else (f"{name}.up_proj",)
        return MLPWeights(self._linear(*inner), self._linear(f"{name}.down_proj"), gated)

    def _experts(self, name: str) -> ExpertWeights:
        experts = self._config.experts
        assert experts is not None
        mlps = tuple(self._mlp(f"{name}.experts.{e}") for e in range(experts.count))
        return ExpertWeights(
            of=experts,
            router=self._linear(f"{name}.gate"),
            experts=mlps,
            score_bias=self._floats(f"{name}.gate.e_score_correction_bias") if experts.score_bias else None,
            shared=self._mlp(f"{name}.shared_expert") if experts.shared_size else None,
            shared_gate=self._shared_gate(name) if experts.shared_size and experts.shared_gate else None,
        )

    def _shared_gate(self, name: str) -> TorchLinear:
        return self._linear(f"{name}.shared_expert_gate")

    def _floats(self, name: str) -> Tensor:
        tensor: Tensor = as_tensors(self._tensors[name])
        return tensor.to(device=self._device, dtype=torch.float32, copy=True)

    def _linear(self, *names: str, heads: Mapping[int, int] | None = None) -> TorchLinear:
        """Fuse projections that share their input. ``heads``: of the projections whose rows are rotary pairs."""
        rows = [(name, (heads or {}).get(i)) for i, name in enumerate(names)]
        weights = [self._rows(f"{name}.weight", h) for name, h in rows]
        biased = f"{names[0]}.bias" in self._tensors
        biases = [self._rows(f"{name}.bias", h) for name, h in rows] if biased else []
        return TorchLinear(torch.cat(weights), torch.cat(biases) if biases else None)

    def _rows(self, name: str, heads: int | None) -> Tensor:
        return pair_rows(self.get(name), heads) if heads else self.get(name)
