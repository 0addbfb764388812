"""Seed-OSS: biases on q, k and v, and by keys of their own on the output projection and in the MLP."""

from __future__ import annotations

from outrider.weights.families.base import COMMON, Family, flag, words

__all__ = ["SEED_OSS"]

SEED_OSS = Family(
    name="seed_oss",
    architecture="SeedOssForCausalLM",
    defaults=COMMON
    | {
        "num_hidden_layers": 64,
        "num_attention_heads": 80,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 155136,
        "intermediate_size": 27648,
        "max_position_embeddings": 524288,
        "attention_bias": True,
        "attention_out_bias": False,
        "mlp_bias": False,
    },
    read=lambda raw: {
        "attention_bias": flag(raw, "attention_bias"),
        "output_bias": flag(raw, "attention_out_bias"),
        "mlp_bias": flag(raw, "mlp_bias"),
    },
    write=lambda config: {
        "attention_bias": config.attention_bias,
        "attention_out_bias": config.output_bias,
        "mlp_bias": config.mlp_bias,
    },
    keys=words("attention_bias attention_out_bias mlp_bias"),
)
