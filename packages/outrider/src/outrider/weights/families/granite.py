"""Granite 3: a factor on the embedding, on the output of each block, on scores and on logits."""

from __future__ import annotations

from typing import Any

from outrider.models.config import ModelConfig
from outrider.weights.families.base import COMMON, Family, Raw, biases, words
from outrider.weights.values import positive

__all__ = ["GRANITE"]


def _read(raw: Raw) -> dict[str, Any]:
    return {
        **biases(raw),
        "embedding_scale": positive(raw, "embedding_multiplier"),
        "residual_scale": positive(raw, "residual_multiplier"),
        "attention_scale": positive(raw, "attention_multiplier"),
        "logit_scale": 1 / positive(raw, "logits_scaling"),
    }


def _write(config: ModelConfig) -> dict[str, Any]:
    return {
        "attention_bias": config.attention_bias,
        "mlp_bias": config.mlp_bias,
        "embedding_multiplier": config.embedding_scale,
        "residual_multiplier": config.residual_scale,
        "attention_multiplier": config.attention_scale,
        "logits_scaling": 1 / config.logit_scale,
    }


GRANITE = Family(
    name="granite",
    architecture="GraniteForCausalLM",
    defaults=COMMON
    | {
        "vocab_size": 32000,
        "intermediate_size": 11008,
        "max_position_embeddings": 2048,
        "attention_bias": False,
        "mlp_bias": False,
        **dict.fromkeys(("embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling"), 1.0),
    },
    read=_read,
    write=_write,
    keys=words("attention_bias mlp_bias embedding_multiplier residual_multiplier attention_multiplier logits_scaling"),
)
