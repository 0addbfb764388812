"""Rotary position in ``config.json``: the base, and how frequencies are scaled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outrider.checkpoints.config_values import positive, positive_integer
from outrider.errors import ModelFormatError
from outrider.utils.json_files import shown

__all__ = ["ROPE_TYPES", "read_rope"]

ROPE_TYPES: tuple[str, ...] = ("default", "linear", "llama3")

_KEYS = {  # besides the type and the base; transformers ignores a factor without a type
    "default": ("factor", "partial_rotary_factor"),
    "linear": ("factor", "partial_rotary_factor"),
    "llama3": (
        *("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
        "partial_rotary_factor",
    ),
}

Rope = tuple[float, dict[str, Any]]


def read_rope(raw: Mapping[str, Any]) -> Rope:
    """Base and scaling from ``rope_parameters`` (transformers 5) or ``rope_theta`` and ``rope_scaling``.

    Raises ``ModelFormatError`` for scalings that are not implemented, and where two keys say different things.
    """
    found: dict[str, Rope] = {}
    for key in ("rope_scaling", "rope_parameters"):
        if raw.get(key):
            found[key] = _parse(raw, key)
    if not found:
        return _base(raw, {}), {}
    if len(found) == 2 and found["rope_scaling"] != found["rope_parameters"]:
        raise ModelFormatError("rope_scaling and rope_parameters say different things: remove one of them")
    return next(iter(found.values()))


def _parse(raw: Mapping[str, Any], key: str) -> Rope:
    rope = raw[key]
    if not isinstance(rope, dict):
        raise ModelFormatError(f"{key}={shown(rope)} is not an object: download the model again")
    theta = _base(raw, rope)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if not isinstance(kind, str) or kind not in ROPE_TYPES:
        raise ModelFormatError(f"rope type {shown(kind)} is not supported: use one of {', '.join(ROPE_TYPES)}")
    for name, value in rope.items():
        if value is not None and name not in (*_KEYS[kind], "rope_type", "type", "rope_theta"):
            raise ModelFormatError(f"{key} with {shown(name)}: {shown(value)} is not supported for type {kind}")
    if rope.get("partial_rotary_factor") not in (None, 1):
        partial = shown(rope["partial_rotary_factor"])
        raise ModelFormatError(f"partial_rotary_factor={partial} is not supported: only whole heads are rotated")
    if kind == "default":
        return theta, {}
    scaling: dict[str, Any] = {"rope_type": kind, "factor": positive(rope, "factor")}
    if kind == "llama3":
        scaling |= {name: positive(rope, name) for name in ("low_freq_factor", "high_freq_factor")}
        if scaling["high_freq_factor"] <= scaling["low_freq_factor"]:
            raise ModelFormatError(
                f"{key}: high_freq_factor is not more than low_freq_factor: download the model again"
            )
        scaling["original_max_position_embeddings"] = _original_length(raw, rope)
    return theta, scaling


def _base(raw: Mapping[str, Any], rope: Mapping[str, Any]) -> float:
    return positive({"rope_theta": 10000.0, **raw, **rope}, "rope_theta")


def _original_length(raw: Mapping[str, Any], rope: Mapping[str, Any]) -> int:
    """As in transformers: the model's own key comes first, then the scaling's; without either, the whole context."""
    key = "original_max_position_embeddings"
    if raw.get(key) is not None:
        return positive_integer(raw, key)
    if key in rope:
        return positive_integer(rope, key)
    return positive_integer(raw, "max_position_embeddings")
