"""ERNIE 4.5, dense: rotary pairs are adjacent; biases everywhere or nowhere."""

from __future__ import annotations

from typing import Any

from outrider.weights.families.base import COMMON, Family, Raw, flag, words

__all__ = ["ERNIE4_5"]


def _read(raw: Raw) -> dict[str, Any]:
    return dict.fromkeys(("attention_bias", "output_bias", "mlp_bias"), flag(raw, "use_bias"))


ERNIE4_5 = Family(
    name="ernie4_5",
    architecture="Ernie4_5ForCausalLM",
    differs="rotation in adjacent pairs",
    defaults=COMMON
    | {
        "hidden_size": 1024,
        "num_hidden_layers": 18,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "vocab_size": 103424,
        "intermediate_size": 3072,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "use_bias": False,
    },
    read=_read,
    write=lambda config: {"use_bias": config.mlp_bias},
    keys=words("use_bias"),
    theta=5e5,
    interleaved=True,
)
