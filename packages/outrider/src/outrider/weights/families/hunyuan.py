"""Hunyuan, dense: norms on q and k behind the rotation, whose base may grow by a power of ``alpha``."""

from __future__ import annotations

from outrider.weights.families.base import COMMON, Family, biases, words

__all__ = ["HUNYUAN"]

HUNYUAN = Family(
    name="hunyuan_v1_dense",
    architecture="HunYuanDenseV1ForCausalLM",
    differs="norms on q and k behind the rotation",
    defaults=COMMON
    | {
        "head_dim": None,
        "vocab_size": 290943,
        "intermediate_size": 11008,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "attention_bias": False,
    },
    read=lambda raw: biases(raw) | {"mlp_bias": False, "qk_norm": True, "rotated_qk_norm": True},
    write=lambda config: {"attention_bias": config.attention_bias},
    keys=words("attention_bias"),
    grows_base=True,
    rename={"self_attn.q_norm": "self_attn.query_layernorm", "self_attn.k_norm": "self_attn.key_layernorm"},
)
