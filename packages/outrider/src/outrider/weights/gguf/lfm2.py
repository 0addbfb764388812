"""LFM2 in GGUF files: layers whose number of key heads is 0 are short convolutions."""

from __future__ import annotations

from typing import Any

from outrider.weights.families.lfm2 import ATTENTION, CONVOLUTION
from outrider.weights.gguf.header import GGUFHeader
from outrider.weights.gguf.names import GGUFFamily, number_of_parts, numbers_by_layer

__all__ = ["LFM2"]

_KV_HEADS = "attention.head_count_kv"
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


def _read(arch: str, header: GGUFHeader) -> dict[str, Any]:
    key = f"{arch}.{_KV_HEADS}"
    heads = numbers_by_layer(header, key, header.scalar(f"{arch}.block_count"))
    return {
        "num_key_value_heads": number_of_parts(heads, key),
        "layer_types": [ATTENTION if count else CONVOLUTION for count in heads],
        "conv_L_cache": header.scalar(f"{arch}.shortconv.l_cache"),
        "norm_eps": header.scalar(f"{arch}.attention.layer_norm_rms_epsilon"),
        "block_auto_adjust_ff_dim": False,
    }


LFM2 = GGUFFamily(
    family="lfm2",
    read=_read,
    keys=("shortconv.l_cache",),
    tensors=_TENSORS,
    top={"token_embd_norm": "model.embedding_norm"},
    by_layer=(_KV_HEADS,),
)
