"""Rotary position in ``config.json``: the base, and how frequencies are scaled."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from outrider.errors import ModelFormatError
from outrider.models.frequencies import grown_base
from outrider.utils.json_files import shown
from outrider.weights.families.base import Family
from outrider.weights.values import positive, positive_integer

__all__ = ["Rope", "read_rope"]

_BY_KIND = ("full_attention", "sliding_attention")


@dataclass(frozen=True)
class Rope:
    """The rotation of heads (RoPE, Su et al. 2021)."""

    theta: float
    """The base of the frequencies."""
    scaling: dict[str, Any]
    """Keys of ``ModelConfig.rope_scaling``; empty: not scaled."""
    share: float = 1.0
    """The share of a head's dimensions that is rotated."""
    local_theta: float | None = None
    """The base in layers with a window, which are not scaled; None: as in the other layers."""


def read_rope(raw: Mapping[str, Any], family: Family) -> Rope:
    """The rotation by ``rope_parameters`` (transformers 5) or ``rope_theta`` and ``rope_scaling``.

    Other keys change nothing, as in transformers. Raises ``ModelFormatError`` for scalings that are not implemented.
    """
    if family.rope_by_kind is not None:
        return _read_by_kind(raw, family)
    for key in ("rope_scaling", "rope_parameters"):  # the first present key counts, as in transformers
        if raw.get(key):
            return _parse(raw, raw[key], key, family)
    return _parse(raw, family.rope_otherwise, "rope_parameters", family)


def _read_by_kind(raw: Mapping[str, Any], family: Family) -> Rope:
    """``rope_parameters`` with a rotation for each kind of layer; ``rope_scaling`` changes that of full attention.

    Only Gemma 3 reads ``rope_local_base_freq``.
    """
    own, scaling = _object(raw, "rope_parameters"), _object(raw, "rope_scaling")
    own = own or family.defaults.get("rope_parameters", {})
    truncate = {"truncate": own.get("truncate", True)}  # transformers reads it in this object only
    full = _parse(raw, {**_object(own, _BY_KIND[0]), **scaling, **truncate}, "rope_parameters", family)
    read = raw.get("rope_local_base_freq") if "rope_local_base_freq" in family.keys else None
    theta = {"rope_theta": family.rope_by_kind if read is None else read}
    local = _parse(theta, _object(own, _BY_KIND[1]), "rope_parameters", family)
    if local.scaling:
        raise ModelFormatError(f"rope type {shown(local.scaling['rope_type'])} is not supported for sliding_attention")
    return replace(full, local_theta=local.theta)


def _object(raw: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = raw.get(key)
    if value is not None and not isinstance(value, dict):
        raise ModelFormatError(f"{key}={shown(value)} is not an object: download the model again")
    return value or {}


def _parse(raw: Mapping[str, Any], rope: object, key: str, family: Family) -> Rope:
    rope = _object({key: rope}, key)
    theta = _base(raw, rope, family)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if family.name == "phi3" and kind in ("su", "yarn"):
        kind = "longrope"  # LongRoPE's older names
    if not isinstance(kind, str) or kind not in family.rope_types:
        raise ModelFormatError(f"rope type {shown(kind)} is not supported: use one of {', '.join(family.rope_types)}")
    if family.grows_base and kind == "dynamic" and rope.get("alpha"):
        kind, theta = "default", _grown_base(raw, rope, theta)
    partial = rope.get("partial_rotary_factor")
    if partial is None:
        partial = raw.get("partial_rotary_factor", 1.0)
    if not family.partial and kind in ("default", "proportional"):
        partial = None  # transformers' code for the family does not read it, or not as a share of the dimensions
    if partial not in (None, 1) and not family.partial:
        raise ModelFormatError(f"partial_rotary_factor={shown(partial)} is not supported: only whole heads are rotated")
    share = 1.0 if partial is None else positive({"partial_rotary_factor": partial}, "partial_rotary_factor")
    return Rope(theta, _SCALINGS[kind](raw, rope, key), share)


def _grown_base(raw: Mapping[str, Any], rope: Mapping[str, Any], theta: float) -> float:
    """The base that ``alpha`` makes of ``theta``."""
    d = positive_integer(raw, "head_dim")
    if d <= 2:
        raise ModelFormatError(f"head_dim={d} has no base that grows: use more than 2")
    return grown_base(theta, positive(rope, "alpha"), d)


def _dynamic(raw: Mapping[str, Any], rope: Mapping[str, Any], key: str) -> dict[str, Any]:
    """No scaling: it would begin beyond ``max_position_embeddings``, where the context ends."""
    positive(rope, "factor")
    return {}


def _linear(raw: Mapping[str, Any], rope: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {"rope_type": "linear", "factor": positive(rope, "factor")}


def _llama3(raw: Mapping[str, Any], rope: Mapping[str, Any], key: str) -> dict[str, Any]:
    scaling: dict[str, Any] = {"rope_type": "llama3", "factor": positive(rope, "factor")}
    scaling |= {name: positive(rope, name) for name in ("low_freq_factor", "high_freq_factor")}
    if scaling["high_freq_factor"] < scaling["low_freq_factor"]:
        raise ModelFormatError(f"{key}: high_freq_factor is less than low_freq_factor: download the model again")
    return scaling | {"original_max_position_embeddings": _original_length(raw, rope)}


def _yarn(raw: Mapping[str, Any], rope: Mapping[str, Any], key: str) -> dict[str, Any]:
    factor, scales = positive(rope, "factor"), [rope.get(name) for name in ("mscale", "mscale_all_dim")]
    own, whole = [positive({"mscale": scale}, "mscale") for scale in scales] if all(scales) else (1.0, 0.0)
    grown = _grown(factor, own) / _grown(factor, whole)
    return {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": _original_length(raw, rope),
        "attention_factor": _attention_factor(rope, grown),
        "beta_fast": positive({"beta_fast": rope.get("beta_fast") or 32}, "beta_fast"),
        "beta_slow": positive({"beta_slow": rope.get("beta_slow") or 1}, "beta_slow"),
    } | ({} if rope.get("truncate", True) else {"truncate": False})


def _grown(factor: float, scale: float) -> float:
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _longrope(raw: Mapping[str, Any], rope: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The short factors, which apply within the original context; ``read_config`` ends the context there."""
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


def _proportional(raw: Mapping[str, Any], rope: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The first pairs of a head turn, as if all of them did."""
    share, factor = rope.get("partial_rotary_factor", 1.0), rope.get("factor", 1.0)
    share = positive({"partial_rotary_factor": share}, "partial_rotary_factor")
    if share > 1:
        raise ModelFormatError(f"{key}: partial_rotary_factor={share} is more than a head: download the model again")
    return {"rope_type": "proportional", "share": share, "factor": positive({"factor": factor}, "factor")}


_SCALINGS: Mapping[str, Callable[[Mapping[str, Any], Mapping[str, Any], str], dict[str, Any]]] = {
    "default": lambda raw, rope, key: {},
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "proportional": _proportional,
}


def _attention_factor(rope: Mapping[str, Any], otherwise: float) -> float:
    """The file's factor, else ``otherwise``, rounded as logarithms of C libraries differ in the last digit."""
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
