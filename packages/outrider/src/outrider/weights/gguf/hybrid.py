"""Qwen3-Next and Qwen3.5 in GGUF files: keys of recurrent layers, and names of their tensors and the draft head's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from outrider.errors import ModelFormatError
from outrider.utils.json_files import shown
from outrider.weights.families.hybrid import ATTENTION, RECURRENT
from outrider.weights.gguf.header import GGUFHeader
from outrider.weights.gguf.names import GGUFFamily, Keys

__all__ = ["HYBRIDS", "NEXTN", "NEXTN_TENSORS"]

NEXTN = "nextn_predict_layers"
"""The key of the number of blocks behind the model's layers that are its draft head."""
_INTERVAL, _KINDS = "full_attention_interval", "attention.recurrent_layers"
_SSM = ("conv_kernel", "state_size", "group_count", "time_step_rank", "inner_size")

_KEYS: tuple[str, ...] = (NEXTN, _INTERVAL, _KINDS, "rope.dimension_sections", *(f"ssm.{key}" for key in _SSM))
"""Keys of ``ARCH.`` that are read here. The sections of a position are those of images: a text has one position."""
_EXPERT_KEYS: tuple[str, ...] = (
    *("expert_count", "expert_used_count", "expert_feed_forward_length", "expert_shared_feed_forward_length"),
)

NEXTN_TENSORS: Mapping[str, str] = {
    "nextn.eh_proj": "mtp.fc",
    "nextn.enorm": "mtp.pre_fc_norm_embedding",
    "nextn.hnorm": "mtp.pre_fc_norm_hidden",
    "nextn.shared_head_norm": "mtp.norm",
    "nextn.embed_tokens": "mtp.embed_tokens",
    "nextn.shared_head_head": "mtp.lm_head",
}
"""Names of a draft head's tensors."""
_TENSORS: Mapping[str, str] = {
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_in": "linear_attn.in_proj_qkvz",
    "ssm_beta": "linear_attn.in_proj_b",
    "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_ba": "linear_attn.in_proj_ba",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_gate_up_exps": "mlp.experts.gate_up_proj",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    **NEXTN_TENSORS,
}
_WHOLE_NAMES: Mapping[str, str] = {"ssm_a": "linear_attn.decay", "ssm_dt.bias": "linear_attn.dt_bias"}
"""llama.cpp's converter keeps -exp(A_log) as ``ssm_a``."""


def _read(arch: str, header: GGUFHeader) -> dict[str, Any]:
    """Keys of ``config.json`` for the recurrent layers and the gate of attention."""
    get = header.scalar
    conv, key_dim, key_heads, value_heads, inner = (get(f"{arch}.ssm.{key}") for key in _SSM)
    if not isinstance(value_heads, int) or not isinstance(inner, int) or value_heads <= 0 or inner % value_heads:
        raise ModelFormatError(
            f"{arch}.ssm.inner_size={shown(inner)} is no multiple of {arch}.ssm.time_step_rank={shown(value_heads)}: "
            "download the file again"
        )
    return {
        "linear_conv_kernel_dim": conv,
        "linear_key_head_dim": key_dim,
        "linear_value_head_dim": inner // value_heads,
        "linear_num_key_heads": key_heads,
        "linear_num_value_heads": value_heads,
        "attention_bias": "blk.0.attn_q.bias" in header.tensors,
        "full_attention_interval": get(f"{arch}.{_INTERVAL}", 4),
    } | _kinds(arch, header)


def _kinds(arch: str, header: GGUFHeader) -> dict[str, Any]:
    """``layer_types`` by the file's list, where it has one, without the draft head's blocks behind the layers."""
    said = header.metadata.get(f"{arch}.{_KINDS}")
    if said is None:
        return {}
    blocks, heads = header.scalar(f"{arch}.block_count"), header.scalar(f"{arch}.{NEXTN}", 0)
    if not isinstance(said, list | np.ndarray) or len(said) != blocks:
        raise ModelFormatError(
            f"{arch}.{_KINDS}={shown(said)} does not name the kind of each of {shown(blocks)} blocks"
        )
    return {"layer_types": [RECURRENT if kind else ATTENTION for kind in said][: blocks - heads]}


def _read_experts(arch: str, header: GGUFHeader) -> dict[str, Any]:
    """The same with experts, whose weights llama.cpp normalises to the sum 1."""
    get = header.scalar
    used, whole = get(f"{arch}.expert_used_count"), get(f"{arch}.feed_forward_length", 0)
    size = whole // used if isinstance(used, int) and used and isinstance(whole, int) else None
    return _read(arch, header) | {
        "num_experts": get(f"{arch}.expert_count"),
        "num_experts_per_tok": used,
        "moe_intermediate_size": get(f"{arch}.expert_feed_forward_length") or size,
        "shared_expert_intermediate_size": get(f"{arch}.expert_shared_feed_forward_length") or whole,
        "norm_topk_prob": True,
    }


def _family(name: str, read: Keys, keys: tuple[str, ...], *, tiled: bool = True) -> GGUFFamily:
    return GGUFFamily(
        family=name, read=read, keys=keys, tensors=_TENSORS, whole_names=_WHOLE_NAMES, partial=True, tiled=tiled
    )


HYBRIDS: Mapping[str, GGUFFamily] = {
    "qwen35": _family("qwen3_5_text", _read, _KEYS),
    "qwen35moe": _family("qwen3_5_moe_text", _read_experts, _KEYS + _EXPERT_KEYS),
    "qwen3next": _family("qwen3_next", _read_experts, _KEYS + _EXPERT_KEYS, tiled=False),
}
"""By architecture."""
