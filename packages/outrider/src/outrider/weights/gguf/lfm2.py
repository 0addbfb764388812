"""LFM2, with and without experts, in GGUF files: layers whose number of key heads is 0 are short convolutions."""

from __future__ import annotations

from typing import Any

from outrider.weights.families.lfm2 import ATTENTION, CONVOLUTION
from outrider.weights.gguf.header import GGUFHeader
from outrider.weights.gguf.names import GGUFFamily, number_of_parts, numbers_by_layer
from outrider.weights.gguf.routed import COUNTS, check_sigmoid

__all__ = ["LFM2", "LFM2_MOE"]

_KV_HEADS = "attention.head_count_kv"
_DENSE = "leading_dense_block_count"
_TENSORS = {
    "attn_norm": "operator_norm",
    "ffn_norm": "ffn_norm",
    "attn_q_norm": "self_attn.q_layernorm",
    "attn_k_norm": "self_attn.k_layernorm",
    "attn_output": "self_attn.out_proj",
    "shortconv.in_proj": "conv.in_proj",
    "shortconv.conv": "conv.conv",
    "shortconv.out_proj": "conv.out_proj",
    "ffn_gate": "feed_forward.w1",
    "ffn_up": "feed_forward.w3",
    "ffn_down": "feed_forward.w2",
}
_TOP = {"token_embd_norm": "model.embedding_norm"}


def _read(arch: str, header: GGUFHeader) -> dict[str, Any]:
    key = f"{arch}.{_KV_HEADS}"
    heads = numbers_by_layer(header, key, header.scalar(f"{arch}.block_count"))
    return {
        "num_key_value_heads": number_of_parts(heads, key),
        "layer_types": [ATTENTION if count else CONVOLUTION for count in heads],
        "conv_L_cache": header.scalar(f"{arch}.shortconv.l_cache"),
        "norm_eps": header.scalar(f"{arch}.attention.layer_norm_rms_epsilon"),
    }


def _read_experts(arch: str, header: GGUFHeader) -> dict[str, Any]:
    """In this architecture llama.cpp always normalises the weights of experts, and never scales them."""
    check_sigmoid(arch, header)
    count, used, size = (header.scalar(f"{arch}.{key}") for key in COUNTS)
    return _read(arch, header) | {
        "num_experts": count,
        "num_experts_per_tok": used,
        "moe_intermediate_size": size,
        "num_dense_layers": header.scalar(f"{arch}.{_DENSE}", 0),
    }


LFM2 = GGUFFamily(
    family="lfm2",
    read=lambda arch, header: _read(arch, header) | {"block_auto_adjust_ff_dim": False},
    keys=("shortconv.l_cache",),
    tensors=_TENSORS,
    top=_TOP,
    by_layer=(_KV_HEADS,),
)
LFM2_MOE = GGUFFamily(
    family="lfm2_moe",
    read=_read_experts,
    keys=("shortconv.l_cache", *COUNTS, "expert_gating_func", _DENSE),
    tensors=_TENSORS,
    top=_TOP,
    whole_names={"exp_probs_b.bias": "feed_forward.expert_bias"},
    by_layer=(_KV_HEADS,),
)
