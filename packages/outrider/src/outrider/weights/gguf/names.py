"""llama.cpp's names of tensors, and the differences of an architecture."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from outrider.errors import ModelFormatError
from outrider.utils.json_files import shown
from outrider.weights.families import Family
from outrider.weights.gguf.header import GGUFHeader

__all__ = ["GGUFFamily", "Keys", "number_of_parts", "numbers_by_layer", "shortest"]

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"} | {
    "per_layer_token_embd": "model.embed_tokens_per_layer",
    "per_layer_model_proj": "model.per_layer_model_projection",
    "per_layer_proj_norm": "model.per_layer_projection_norm",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.gate_proj",
    "ffn_up_exps": "mlp.experts.up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
    "ffn_gate_up_exps": "mlp.experts.gate_up_proj",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
}
_NAME = re.compile(r"(?:blk\.(\d+)\.)?((?:nextn\.|shortconv\.)?\w+)(?:\.(weight|bias|scale))?")
_MOST_LAYERS = 10_000
_EXPERT = re.compile(r"\.experts\.\d+\.")

Keys = Callable[[str, GGUFHeader], dict[str, Any]]
"""Computes keys of ``config.json`` from the keys ``ARCH.*`` of a header."""


@dataclass(frozen=True, kw_only=True)
class GGUFFamily:
    """An architecture of llama.cpp."""

    family: str
    read: Keys = lambda arch, header: {}
    keys: tuple[str, ...] = ()
    """Keys of ``ARCH.`` that ``read`` reads."""
    interleaved: bool = False
    """Rotary pairs are adjacent rows of q and k, the order in which llama.cpp converts Llama."""
    tensors: Mapping[str, str] = field(default_factory=dict)
    """Names of a layer's tensors where they are not Llama's."""
    top: Mapping[str, str] = field(default_factory=dict)
    """Names of tensors outside the layers where they are not Llama's."""
    whole_names: Mapping[str, str] = field(default_factory=dict)
    """The same for whole names, suffix included."""
    by_layer: tuple[str, ...] = ()
    """Keys that may have a value for each layer; ``read`` reads them."""
    eps: str = "attention.layer_norm_rms_epsilon"
    partial: bool = False
    """``rope.dimension_count`` may be less than a head's dimension."""
    tiled: bool = False
    """Value heads of recurrent layers are stored in the order in which key heads repeat."""
    reads_window: bool = False
    """``read`` gives the layers with a window. In other families llama.cpp attends to the whole context."""

    def family_name(self, name: str, layers: int | None = None) -> str:
        """The name that the family's own files have for ``blk.3.attn_q.weight``; unknown names stay as they are.

        ``layers``: those of the model; blocks behind them are its draft head. None: all.
        """
        match = _NAME.fullmatch(name)
        if match is None:
            return name
        layer, stem, kind = match.groups()
        if layer is None:
            known = (_TOP | dict(self.top)).get(stem)
            return name if known is None or kind is None else f"{known}.{kind}"
        whole = stem if kind is None else f"{stem}.{kind}"
        known = self.whole_names.get(whole)
        if known is None:
            known = (_LAYER | dict(self.tensors)).get(stem)
            if known is None or kind is None:
                return name
            known = f"{known}.{kind}"
        return _placed(known, int(layer), layers)

    def own_name(self, family: Family, found: Collection[str] = ()) -> Callable[[str], str]:
        """A function from canonical names to the family's; experts are stacked, and all of them share one name.

        ``found``: names of the file's tensors.
        """

        def name(canonical: str) -> str:
            own = family.own_name(canonical)
            if ".experts." in canonical or canonical.endswith((".mlp.gate.weight", ".mlp.gate.bias")):
                own = _EXPERT.sub(".experts.", canonical)
            fused = own.replace(".gate_proj.", ".gate_up_proj.").replace(".up_proj.", ".gate_up_proj.")
            if ".experts." in own and fused in found:
                return fused
            if own not in found and canonical in found:  # which the family's own files have in another matrix
                return canonical
            return own

        return name


def _placed(name: str, layer: int, layers: int | None) -> str:
    """The full name of a layer's tensor; of the block behind all layers, that of the draft head."""
    if layers is None or layer < layers:
        return f"model.layers.{layer}.{name}"
    return name if name.startswith("mtp.") else f"mtp.layers.{layer - layers}.{name}"


def numbers_by_layer(header: GGUFHeader, key: str, layers: object) -> list[int]:
    """A number for each layer, of a list or of one number for all. Raises ``ModelFormatError`` for another length."""
    said = header.metadata.get(key)
    if isinstance(layers, int) and isinstance(said, int) and not isinstance(said, bool) and 0 < layers <= _MOST_LAYERS:
        return [said] * layers
    if not isinstance(said, list | np.ndarray) or len(said) != layers:
        raise ModelFormatError(f"{key}={shown(said)} is no number for each of {shown(layers)} layers")
    return [int(number) for number in said]


def number_of_parts(numbers: list[int], key: str) -> int:
    """The number that the layers with such a part share; others have 0."""
    found = set(numbers) - {0}
    if len(found) != 1:
        raise ModelFormatError(f"{key}={shown(numbers)}: one number is supported beside 0")
    return found.pop()


def shortest(value: Any) -> Any:
    """The decimal of 7 digits for a float32 value: GGUF keeps 1e-5 as 9.99999974e-06."""
    return float(f"{value:.7g}") if isinstance(value, float) else value
