"""Ministral 3: YaRN, and factors of queries that grow with the position."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outrider.errors import ModelFormatError
from outrider.models.config import ModelConfig
from outrider.models.temperature import QueryTemperature
from outrider.weights.families.base import COMMON, Family, Raw
from outrider.weights.values import positive, positive_integer

__all__ = ["MINISTRAL3", "read_temperature", "write_temperature"]

_BETA, _LENGTH = "llama_4_scaling_beta", "original_max_position_embeddings"


def read_temperature(raw: Raw) -> dict[str, Any]:
    """The factors of queries by position; without their key the file is of another family."""
    rope = raw.get("rope_scaling") or raw["rope_parameters"]
    if not isinstance(rope, dict) or _BETA not in rope:
        raise ModelFormatError(f"there is no {_BETA} in its rotary scaling: use model_type mistral for 0")
    if rope[_BETA] == 0:
        return {}
    length = positive_integer(rope if raw.get(_LENGTH) is None else raw, _LENGTH)
    return {"query_temperature": QueryTemperature(scale=positive(rope, _BETA), length=length)}


def write_temperature(config: ModelConfig, scaling: Mapping[str, Any]) -> dict[str, Any]:
    """The key from which ``read_temperature`` makes its field, beside the rotary ``scaling``."""
    temperature = config.query_temperature
    own = {"rope_type": "default", _BETA: 0.0, **scaling}
    if temperature is not None:
        own |= {_BETA: temperature.scale, _LENGTH: temperature.length}
    return {"rope_scaling": own}


MINISTRAL3 = Family(
    name="ministral3",
    architecture="Ministral3ForCausalLM",
    defaults=COMMON
    | {
        "num_hidden_layers": 34,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 131072,
        "intermediate_size": 14336,
        "max_position_embeddings": 262144,
        "rms_norm_eps": 1e-5,
        "sliding_window": None,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1e6,
            "factor": 16.0,
            _LENGTH: 16384,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale_all_dim": 1.0,
            "mscale": 1.0,
            _BETA: 0.1,
        },
    },
    read=read_temperature,
    write=lambda config: write_temperature(config, config.rope_scaling),
    windows="all",
    theta=1e6,
)
