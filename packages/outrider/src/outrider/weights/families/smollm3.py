"""SmolLM3: every fourth layer knows no positions."""

from __future__ import annotations

from typing import Any

from outrider.errors import ModelFormatError
from outrider.models.config import ModelConfig
from outrider.utils.json_files import shown
from outrider.weights.families.base import COMMON, Family, Raw, biases, num_layers, words
from outrider.weights.values import positive_integer

__all__ = ["SMOLLM3"]


def _read(raw: Raw) -> dict[str, Any]:
    layers = num_layers(raw)
    rotated = raw.get("no_rope_layers")
    if rotated is None:
        every = positive_integer(raw, "no_rope_layer_interval")
        rotated = [int((i + 1) % every != 0) for i in range(layers)]
    if not isinstance(rotated, list) or len(rotated) != layers or not all(n in (0, 1) for n in rotated):
        raise ModelFormatError(f"no_rope_layers={shown(rotated)} is not 0 or 1 for each of {layers} layers")
    return biases(raw) | {"rope_layers": tuple(map(bool, rotated))}


def _write(config: ModelConfig) -> dict[str, Any]:
    return {
        "attention_bias": config.attention_bias,
        "mlp_bias": config.mlp_bias,
        "no_rope_layers": list(map(int, config.rope_layers)),
    }


SMOLLM3 = Family(
    name="smollm3",
    architecture="SmolLM3ForCausalLM",
    defaults=COMMON
    | {
        "hidden_size": 2048,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "vocab_size": 128256,
        "intermediate_size": 11008,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "no_rope_layers": None,
        "no_rope_layer_interval": 4,
        "use_sliding_window": False,
        "sliding_window": None,
    },
    read=_read,
    write=_write,
    keys=words("attention_bias mlp_bias no_rope_layers no_rope_layer_interval max_window_layers"),
    windows="by kind",
    theta=2e6,
)
