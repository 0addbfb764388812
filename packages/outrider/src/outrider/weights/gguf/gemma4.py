"""Gemma 4 in GGUF files: keys with a value for each layer, and names of its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from outrider.errors import ModelFormatError
from outrider.utils.json_files import shown
from outrider.weights.families.base import num_layers
from outrider.weights.gguf.header import GGUFHeader
from outrider.weights.gguf.names import GGUFFamily, shortest
from outrider.weights.gguf.rope import read_divisors

__all__ = ["GEMMA4", "GEMMA4_TENSORS", "read_gemma4"]

_PATTERN, _SHARED = "attention.sliding_window_pattern", "attention.shared_kv_layers"
_BY_LAYER = ("feed_forward_length", "attention.head_count_kv")
_SWA = ("attention.key_length_swa", "attention.value_length_swa", "rope.dimension_count_swa", "rope.freq_base_swa")
_KEYS: tuple[str, ...] = (
    *(_PATTERN, _SHARED, *_SWA, "final_logit_softcapping", "embedding_length_per_layer_input"),
    *("expert_count", "expert_used_count", "expert_feed_forward_length"),
)
GEMMA4_TENSORS: Mapping[str, str] = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
    "post_ffw_norm_1": "post_feedforward_layernorm_1",
    "post_ffw_norm_2": "post_feedforward_layernorm_2",
    "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
    "inp_gate": "per_layer_input_gate",
    "proj": "per_layer_projection",
    "post_norm": "post_per_layer_input_norm",
    "ffn_gate_up_exps": "mlp.experts.gate_up_proj",
}
_WHOLE_NAMES: Mapping[str, str] = {
    "layer_output_scale.weight": "layer_scalar",
    "ffn_gate_inp.scale": "router.scale",
    "ffn_down_exps.scale": "router.per_expert_scale",
}


def read_gemma4(arch: str, header: GGUFHeader) -> dict[str, Any]:
    """Keys of ``config.json``. Raises ``ModelFormatError`` where llama.cpp would compute something else with them."""
    get = header.scalar
    layers = num_layers({"num_hidden_layers": get(f"{arch}.block_count")})
    windowed = [bool(here) for here in _each(arch, _PATTERN, header, layers)]
    shared = get(f"{arch}.{_SHARED}", 0)
    shared = shared if isinstance(shared, int) and 0 <= shared <= layers else layers
    full, head_dim, turned = (get(f"{arch}.{key}") for key in ("attention.key_length", *_SWA[::2]))
    if get(f"{arch}.{_SWA[1]}", head_dim) != head_dim or (turned or head_dim) != head_dim:
        raise ModelFormatError(f"{arch}.{_SWA[0]}={shown(head_dim)} is not supported with other values or rotation")
    kv_heads = _each(arch, _BY_LAYER[1], header, layers)
    inner = _each(arch, _BY_LAYER[0], header, layers)
    wide = inner[-1] if shared else inner[0]
    if inner != [inner[0]] * (layers - shared) + [wide] * shared or wide not in (inner[0], 2 * inner[0]):
        raise ModelFormatError(f"{arch}.{_BY_LAYER[0]}={shown(inner)} is not supported: one size is, and its double")
    heads = {i: {"head_dim": full, "num_key_value_heads": kv_heads[i]} for i in range(layers) if not windowed[i]}
    bare = next((i for i in range(layers - shared) if not windowed[i]), 0)
    cap = shortest(get(f"{arch}.final_logit_softcapping", 0.0)) or None
    return {
        "head_dim": head_dim,
        "num_key_value_heads": next((n for n, here in zip(kv_heads, windowed, strict=True) if here), kv_heads[0]),
        "per_layer_config": heads,
        "intermediate_size": inner[0],
        "attention_k_eq_v": f"blk.{bare}.attn_v.weight" not in header.tensors,
        "num_kv_shared_layers": shared,
        "use_double_wide_mlp": wide != inner[0],
        "layer_types": ["sliding_attention" if here else "full_attention" for here in windowed],
        "sliding_window": get(f"{arch}.attention.sliding_window"),
        "final_logit_softcapping": cap,
        "rope_parameters": _rope(arch, header, full),
        **_inputs(arch, header),
        **_experts(arch, header),
    }


def _each(arch: str, key: str, header: GGUFHeader, layers: int) -> list[Any]:
    """A key's value for each layer, of which the file may say one for all."""
    said = header.metadata.get(f"{arch}.{key}")
    values = said.tolist() if isinstance(said, np.ndarray) else said
    if isinstance(values, int):
        return [values] * layers
    if not isinstance(values, list) or len(values) < layers:
        raise ModelFormatError(f"{arch}.{key}={shown(said)} has no value for each of {layers} layers")
    return values[:layers]


def _rope(arch: str, header: GGUFHeader, full: Any) -> dict[str, Any]:
    """Rotation by kind of layer. Divisors of 1e30 stand for pairs that do not turn."""
    theta, local = (shortest(header.scalar(f"{arch}.{key}", 1e4)) for key in ("rope.freq_base", "rope.freq_base_swa"))
    divisors = read_divisors(arch, header, "rope_freqs.weight", full)
    kinds = {"sliding_attention": {"rope_type": "default", "rope_theta": local}}
    if divisors is None:
        return kinds | {"full_attention": {"rope_type": "default", "rope_theta": theta}}
    turning = int((divisors == 1.0).sum())
    if not (np.all(divisors[:turning] == 1.0) and np.all(divisors[turning:] > 1e29)):
        raise ModelFormatError("rope_freqs.weight is not Gemma 4's: the first pairs turn, and others do not")
    proportional = {"rope_type": "proportional", "partial_rotary_factor": turning / len(divisors), "rope_theta": theta}
    return kinds | {"full_attention": proportional}


def _inputs(arch: str, header: GGUFHeader) -> dict[str, Any]:
    table = header.tensors.get("per_layer_token_embd.weight")
    own = {"hidden_size_per_layer_input": header.scalar(f"{arch}.embedding_length_per_layer_input", 0)}
    return own if table is None else own | {"vocab_size_per_layer_input": table.shape[0]}


def _experts(arch: str, header: GGUFHeader) -> dict[str, Any]:
    count = header.scalar(f"{arch}.expert_count", 0)
    return {"enable_moe_block": bool(count)} | ({} if not count else {
        "num_experts": count,
        "top_k_experts": header.scalar(f"{arch}.expert_used_count"),
        "moe_intermediate_size": header.scalar(f"{arch}.expert_feed_forward_length"),
    })  # fmt: skip


GEMMA4 = GGUFFamily(
    family="gemma4_text",
    read=read_gemma4,
    keys=_KEYS,
    by_layer=_BY_LAYER,
    tensors=GEMMA4_TENSORS,
    whole_names=_WHOLE_NAMES,
    reads_window=True,
)
