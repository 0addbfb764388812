"""Phi-3, Phi-3.5 and Phi-4: fused projections, part of a head rotated, LongRoPE."""

from __future__ import annotations

from outrider.weights.families.base import COMMON, Family

__all__ = ["PHI3"]

PHI3 = Family(
    name="phi3",
    architecture="Phi3ForCausalLM",
    defaults=COMMON
    | {
        "hidden_size": 3072,
        "vocab_size": 32064,
        "intermediate_size": 8192,
        "max_position_embeddings": 4096,
        "original_max_position_embeddings": 4096,
        "sliding_window": None,
        "rms_norm_eps": 1e-5,
    },
    windows="all",
    rope_types=("default", "longrope"),
    partial=True,
    rename={
        **{f"self_attn.{x}_proj": "self_attn.qkv_proj" for x in "qkv"},
        **{f"mlp.{x}_proj": "mlp.gate_up_proj" for x in ("gate", "up")},
    },
)
