"""Frequencies of rotary position embeddings (RoPE, Su et al. 2021), scaled as ``config.json`` says."""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.errors import ModelFormatError

__all__ = ["grown_base", "inverse_frequencies", "magnitudes"]

Doubles = NDArray[np.float64]


def inverse_frequencies(
    head_dim: int, theta: float, scaling: Mapping[str, Any], rotary_dim: int | None = None
) -> Doubles:
    """The scaled frequency of each rotary pair, in radians a position: float64 [head_dim / 2].

    Pairs behind the first ``rotary_dim`` dimensions have the frequency 0. Raises ``ModelFormatError`` for an unknown
    scaling.
    """
    turned = rotary_dim or head_dim
    with np.errstate(all="ignore"):  # a factor of 0 gives NaN or infinity, which callers check
        inverse = _scaled(_powers(theta, turned), theta, turned, scaling)
    return np.concatenate([inverse, np.zeros((head_dim - turned) // 2)])


def grown_base(theta: float, alpha: float, head_dim: int) -> float:
    """The base for contexts ``alpha`` times as long, theta * alpha ** (d / (d - 2)), rounded once."""
    with localcontext(prec=40):
        return float(Decimal(theta) * Decimal(alpha) ** (Decimal(head_dim) / (head_dim - 2)))


def magnitudes(head_dim: int, scaling: Mapping[str, Any], rotary_dim: int | None = None) -> Doubles | None:
    """The factor of each pair's cosine and sine (YaRN, LongRoPE): float64 [head_dim / 2]; None: 1."""
    factor = float(scaling.get("attention_factor", 1.0))
    if factor == 1.0:
        return None
    turned = (rotary_dim or head_dim) // 2
    size = np.ones(head_dim // 2)
    size[:turned] = factor
    return size


def _scaled(inverse: Doubles, theta: float, dim: int, scaling: Mapping[str, Any]) -> Doubles:
    kind = scaling.get("rope_type", "default")
    if kind == "default":
        return inverse
    if kind == "linear":
        return inverse / float(scaling["factor"])
    if kind == "llama3":
        return _llama3(inverse, scaling)
    if kind == "yarn":
        return _yarn(inverse, theta, dim, scaling)
    if kind == "longrope":
        return inverse / np.array(scaling["short_factor"], np.float64)
    if kind == "proportional":  # the last pairs of a head do not turn
        turning = np.arange(len(inverse)) < int(float(scaling["share"]) * dim // 2)
        return np.where(turning, inverse / float(scaling["factor"]), 0.0)
    raise ModelFormatError(f"rope_type {kind!r} is not supported: use a model with another scaling")


def _powers(theta: float, head_dim: int) -> Doubles:
    """theta ** -(2i / head_dim), rounded once: the power functions of C libraries differ in the last place."""
    with localcontext(prec=40):
        base = Decimal(theta)
        powers = [float(base ** (Decimal(-2 * i) / head_dim)) for i in range(head_dim // 2)]
    return np.array(powers, np.float64)


def _llama3(inverse: Doubles, scaling: Mapping[str, Any]) -> Doubles:
    """Llama 3.1: long wavelengths are slowed by ``factor``, short ones kept, those between blended."""
    context = float(scaling["original_max_position_embeddings"])
    low, high, factor = (float(scaling[k]) for k in ("low_freq_factor", "high_freq_factor", "factor"))
    turns = context * inverse / (2 * math.pi)  # rotations of each pair within the original context
    if low == high:  # Llama 4 Scout: nothing is between
        return np.where(turns < low, inverse / factor, inverse)
    keep = np.clip((turns - low) / (high - low), 0, 1)
    return inverse * (keep + (1 - keep) / factor)


def _yarn(inverse: Doubles, theta: float, dim: int, scaling: Mapping[str, Any]) -> Doubles:
    """YaRN (Peng et al. 2023): pairs that turn seldom within the original context are slowed by ``factor``."""
    low, high = (
        _pair_that_turns(float(scaling[key]), theta, dim, float(scaling["original_max_position_embeddings"]))
        for key in ("beta_fast", "beta_slow")
    )
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0.0), min(high, dim - 1.0)
    high += 0.001 if low == high else 0.0  # as transformers avoids a division by zero
    slowed = np.clip((np.arange(dim // 2) - low) / (high - low), 0, 1)
    blended: Doubles = inverse * (1 - slowed) + inverse / float(scaling["factor"]) * slowed
    return blended


def _pair_that_turns(times: float, theta: float, dim: int, context: float) -> float:
    """The index of the pair with ``times`` rotations within the context.

    Decimal, because logarithms of C libraries differ in the last digit.
    """
    with localcontext(prec=40):
        waves = Decimal(context) / (Decimal(times) * 2 * Decimal(math.pi))
        return float(Decimal(dim) * waves.ln() / (2 * Decimal(theta).ln()))
