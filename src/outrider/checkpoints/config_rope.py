"""Rotary position in ``config.json``: the base, and how frequencies are scaled."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from outrider.checkpoints.config_values import positive, positive_integer
from outrider.checkpoints.families.base import Family
from outrider.errors import ModelFormatError
from outrider.utils.json_files import shown

__all__ = ["Rope", "read_rope"]

_KEYS = {  # besides the type and the base; transformers ignores a factor without a type
    "default": ("factor", "partial_rotary_factor"),
    "linear": ("factor", "partial_rotary_factor"),
    "llama3": (
        *("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
        "partial_rotary_factor",
    ),
    "yarn": (
        *("factor", "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow", "truncate"),
        "partial_rotary_factor",
    ),
    "longrope": (
        *("factor", "original_max_position_embeddings", "attention_factor", "short_factor", "long_factor"),
        "partial_rotary_factor",
    ),
}
_BY_KIND = ("full_attention", "sliding_attention")


@dataclass(frozen=True)
class Rope:
    """How heads are rotated."""

    theta: float
    scaling: dict[str, Any]
    share: float = 1.0
    """Of a head."""
    local_theta: float | None = None
    """The base in layers with a window, which are not scaled; None: as in the others."""


def read_rope(raw: Mapping[str, Any], family: Family) -> Rope:
    """From ``rope_parameters`` (transformers 5) or ``rope_theta`` and ``rope_scaling``.

    Raises ``ModelFormatError`` for scalings that are not implemented, and where two keys say different things.
    """
    if family.rope_by_kind is not None:
        return _read_by_kind(raw, family)
    found: dict[str, Rope] = {}
    for key in ("rope_scaling", "rope_parameters"):
        if raw.get(key):
            found[key] = _parse(raw, raw[key], key, family)
    if not found:
        return _parse(raw, {}, "rope_scaling", family)
    if len(found) == 2 and found["rope_scaling"] != found["rope_parameters"]:
        raise ModelFormatError("rope_scaling and rope_parameters say different things: remove one of them")
    return next(iter(found.values()))


def _read_by_kind(raw: Mapping[str, Any], family: Family) -> Rope:
    """``rope_parameters`` with a rotation for each kind of layer; ``rope_scaling`` is for those without a window."""
    own, old = raw.get("rope_parameters") or {}, raw.get("rope_scaling") or {}
    if not isinstance(own, dict) or not set(own) <= set(_BY_KIND):
        raise ModelFormatError(f"rope_parameters={shown(own)} does not say how each of {', '.join(_BY_KIND)} rotates")
    if own and old:
        raise ModelFormatError("rope_scaling and rope_parameters say different things: remove one of them")
    full = _parse(raw, own.get(_BY_KIND[0]) or old, "rope_parameters", family)
    theta = {"rope_theta": raw.get("rope_local_base_freq") or family.rope_by_kind}
    local = _parse(theta, own.get(_BY_KIND[1]) or {}, "rope_parameters", family)
    if local.scaling:
        raise ModelFormatError(f"rope type {shown(local.scaling['rope_type'])} is not supported for sliding_attention")
    if family.name == "olmo3" and not own and full.theta != local.theta:
        raise ModelFormatError(
            f"rope_theta={full.theta} leaves open how layers with a window rotate: write rope_parameters for both kinds"
        )
    return replace(full, local_theta=local.theta)


def _parse(raw: Mapping[str, Any], rope: object, key: str, family: Family) -> Rope:
    if not isinstance(rope, dict):
        raise ModelFormatError(f"{key}={shown(rope)} is not an object: download the model again")
    theta = _base(raw, rope, family)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if family.name == "phi3" and kind in ("su", "yarn"):
        kind = "longrope"  # its names before transformers had it
    if not isinstance(kind, str) or kind not in family.rope_types:
        raise ModelFormatError(f"rope type {shown(kind)} is not supported: use one of {', '.join(family.rope_types)}")
    for name, value in rope.items():
        if value is not None and name not in (*_KEYS[kind], "rope_type", "type", "rope_theta"):
            raise ModelFormatError(f"{key} with {shown(name)}: {shown(value)} is not supported for type {kind}")
    partial = rope.get("partial_rotary_factor")
    if partial is None:
        partial = raw.get("partial_rotary_factor", 1.0)
    if partial not in (None, 1) and not family.partial:
        raise ModelFormatError(f"partial_rotary_factor={shown(partial)} is not supported: only whole heads are rotated")
    share = 1.0 if partial is None else positive({"partial_rotary_factor": partial}, "partial_rotary_factor")
    return Rope(theta, _SCALINGS[kind](raw, rope, key), share)


def _linear(raw: Mapping[str, Any], rope: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {"rope_type": "linear", "factor": positive(rope, "factor")}


def _llama3(raw: Mapping[str, Any], rope: Mapping[str, Any], key: str) -> dict[str, Any]:
    scaling: dict[str, Any] = {"rope_type": "llama3", "factor": positive(rope, "factor")}
    scaling |= {name: positive(rope, name) for name in ("low_freq_factor", "high_freq_factor")}
    if scaling["high_freq_factor"] <= scaling["low_freq_factor"]:
        raise ModelFormatError(f"{key}: high_freq_factor is not more than low_freq_factor: download the model again")
    return scaling | {"original_max_position_embeddings": _original_length(raw, rope)}


def _yarn(raw: Mapping[str, Any], rope: Mapping[str, Any], key: str) -> dict[str, Any]:
    if rope.get("truncate", True) is not True:
        raise ModelFormatError(f"{key} with truncate={shown(rope['truncate'])} is not supported: only true is")
    factor = positive(rope, "factor")
    grown = 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0
    return {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": _original_length(raw, rope),
        "attention_factor": _attention_factor(rope, grown),
        "beta_fast": positive({"beta_fast": rope.get("beta_fast") or 32}, "beta_fast"),
        "beta_slow": positive({"beta_slow": rope.get("beta_slow") or 1}, "beta_slow"),
    }


def _longrope(raw: Mapping[str, Any], rope: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Within the original context, to which ``hf_config`` cuts the model's: the short factors."""
    original, short = _original_length(raw, rope), rope.get("short_factor")
    if not isinstance(short, list) or not short:
        raise ModelFormatError(f"{key}: short_factor={shown(short)} is no list of numbers: download the model again")
    factors = [positive({f"short_factor[{i}]": n}, f"short_factor[{i}]") for i, n in enumerate(short)]
    longer = rope.get("factor") or positive_integer(raw, "max_position_embeddings") / original
    grown = math.sqrt(1 + math.log(longer) / math.log(original)) if longer > 1 else 1.0
    return {
        "rope_type": "longrope",
        "short_factor": factors,
        "original_max_position_embeddings": original,
        "attention_factor": _attention_factor(rope, grown),
    }


_SCALINGS: Mapping[str, Callable[[Mapping[str, Any], Mapping[str, Any], str], dict[str, Any]]] = {
    "default": lambda raw, rope, key: {},
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}


def _attention_factor(rope: Mapping[str, Any], otherwise: float) -> float:
    """Rounded, as logarithms of C libraries differ in the last place."""
    return round(otherwise, 12) if rope.get("attention_factor") is None else positive(rope, "attention_factor")


def _base(raw: Mapping[str, Any], rope: Mapping[str, Any], family: Family) -> float:
    return positive({"rope_theta": family.theta, **raw, **rope}, "rope_theta")


def _original_length(raw: Mapping[str, Any], rope: Mapping[str, Any]) -> int:
    """As in transformers: the model's own key comes first, then the scaling's; without either, the whole context."""
    key = "original_max_position_embeddings"
    if raw.get(key) is not None:
        return positive_integer(raw, key)
    if key in rope:
        return positive_integer(rope, key)
    return positive_integer(raw, "max_position_embeddings")
