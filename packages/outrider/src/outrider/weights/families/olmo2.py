"""OLMo 2 and 3: norms behind the blocks, and on q and k as a whole; windows in three layers of four of OLMo 3."""

from __future__ import annotations

from typing import Any

from outrider.models.config import ModelConfig
from outrider.weights.families.base import COMMON, Family, Raw, biases, kinds_of, pattern, words

__all__ = ["OLMO2", "OLMO3"]

_DEFAULTS = COMMON | {
    "vocab_size": 50304,
    "intermediate_size": 11008,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "attention_bias": False,
}
_NAMES = {"attention_output_norm": "post_attention_layernorm", "mlp_output_norm": "post_feedforward_layernorm"}


def _read(raw: Raw) -> dict[str, Any]:
    return biases(raw) | {"norms": "after", "qk_norm": True, "whole_qk_norm": True, "mlp_bias": False}


def _write(config: ModelConfig) -> dict[str, Any]:
    return {"attention_bias": config.attention_bias}


OLMO2 = Family(
    name="olmo2",
    architecture="Olmo2ForCausalLM",
    defaults=_DEFAULTS,
    read=_read,
    write=_write,
    keys=words("attention_bias"),
    rename=_NAMES,
)
OLMO3 = Family(
    name="olmo3",
    architecture="Olmo3ForCausalLM",
    defaults=_DEFAULTS | {"sliding_window": 4096},
    read=lambda raw: _read(raw) | pattern(raw, 4),
    write=lambda config: _write(config) | {"layer_types": kinds_of(config), "sliding_window": config.sliding_window},
    keys=words("attention_bias"),
    windows="of its own",
    theta=5e5,
    rope_by_kind=5e5,
    rename=_NAMES,
)
