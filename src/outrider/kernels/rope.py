"""Rotary position embedding on adjacent pairs, as one complex multiplication."""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal, localcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from outrider.errors import ModelFormatError
from outrider.kernels.serial import serial_rows


def rotations(inverse: Tensor, positions: int, magnitude: Tensor | None = None) -> Tensor:
    """complex64 [positions, 1, head_dim / 2]: the rotation of each pair at each position (Su et al. 2021).

    Args:
        inverse: float64 [head_dim / 2], from ``inverse_frequencies``.
        magnitude: float64 [head_dim / 2], from ``magnitudes``; None: 1.
    """
    angles = torch.arange(positions, dtype=torch.float64)[:, None] * inverse
    size = torch.ones_like(inverse) if magnitude is None else magnitude
    return torch.polar(size.expand_as(angles).contiguous(), angles).to(torch.complex64)[:, None]


def inverse_frequencies(
    head_dim: int, theta: float, scaling: Mapping[str, Any], rotary_dim: int | None = None
) -> Tensor:
    """float64 [head_dim / 2], after the scaling that ``config.json`` asks for.

    Pairs behind the first ``rotary_dim`` dimensions are not turned: their frequency is 0.
    """
    turned = rotary_dim or head_dim
    inverse = _scaled(_powers(theta, turned), theta, turned, scaling)
    return F.pad(inverse, (0, (head_dim - turned) // 2))


def magnitudes(head_dim: int, scaling: Mapping[str, Any], rotary_dim: int | None = None) -> Tensor | None:
    """float64 [head_dim / 2]: by how much each pair grows when it is turned; None: not at all."""
    factor = float(scaling.get("attention_factor", 1.0))
    if factor == 1.0:
        return None
    turned = (rotary_dim or head_dim) // 2
    size = torch.ones(head_dim // 2, dtype=torch.float64)
    size[:turned] = factor
    return size


def _scaled(inverse: Tensor, theta: float, dim: int, scaling: Mapping[str, Any]) -> Tensor:
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
        return inverse / torch.tensor(scaling["short_factor"], dtype=torch.float64)
    raise ModelFormatError(f"rope_type {kind!r} is not supported: use a model with another scaling")


def _powers(theta: float, head_dim: int) -> Tensor:
    """theta ** -(2i / head_dim), rounded once: the power functions of C libraries differ in the last place."""
    with localcontext(prec=40):
        base = Decimal(theta)
        powers = [float(base ** (Decimal(-2 * i) / head_dim)) for i in range(head_dim // 2)]
    return torch.tensor(powers, dtype=torch.float64)


def _llama3(inverse: Tensor, scaling: Mapping[str, Any]) -> Tensor:
    """Llama 3.1: long wavelengths are slowed by ``factor``, short ones kept, those between blended."""
    context = float(scaling["original_max_position_embeddings"])
    low, high, factor = (float(scaling[k]) for k in ("low_freq_factor", "high_freq_factor", "factor"))
    turns = context * inverse / (2 * math.pi)  # how often each pair turns within the original context
    keep = ((turns - low) / (high - low)).clamp(0, 1)
    return inverse * (keep + (1 - keep) / factor)


def _yarn(inverse: Tensor, theta: float, dim: int, scaling: Mapping[str, Any]) -> Tensor:
    """YaRN (Peng et al. 2023): pairs that turn seldom within the original context are slowed by ``factor``."""
    low, high = (
        _pair_that_turns(float(scaling[key]), theta, dim, float(scaling["original_max_position_embeddings"]))
        for key in ("beta_fast", "beta_slow")
    )
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0.0), min(high, dim - 1.0)
    high += 0.001 if low == high else 0.0  # as transformers avoids a division by zero
    slowed = ((torch.arange(dim // 2, dtype=torch.float64) - low) / (high - low)).clamp(0, 1)
    return inverse * (1 - slowed) + inverse / float(scaling["factor"]) * slowed


def _pair_that_turns(times: float, theta: float, dim: int, context: float) -> float:
    """Which pair turns so many times within the context; logarithms of C libraries differ in the last place."""
    with localcontext(prec=40):
        waves = Decimal(context) / (Decimal(times) * 2 * Decimal(math.pi))
        return float(Decimal(dim) * waves.ln() / (2 * Decimal(theta).ln()))


def pair_rows(weight: Tensor, heads: int) -> Tensor:
    """Reorder projection rows [heads * head_dim, ...] from half-split pairs (i, i + d/2) to adjacent (2i, 2i + 1).

    Query and key rows are permuted alike, so every product of a query with a key is what it was.
    """
    pairs: Tensor = weight.unflatten(0, (heads, 2, -1))
    return pairs.transpose(1, 2).flatten(0, 2).contiguous()


def rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """Rotate x: [n, heads, head_dim] by ``rotation``: complex64 [n, 1, head_dim / 2]; computed in float32."""
    rows = serial_rows(x.shape[1] * rotation.shape[-1])
    if x.shape[0] <= rows or x.is_cuda:
        return _rotate(x, rotation)
    parts = zip(torch.split(x, rows), torch.split(rotation, rows), strict=True)
    return torch.cat([_rotate(part, by) for part, by in parts])


def _rotate(x: Tensor, rotation: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * rotation).flatten(-2).to(x.dtype)
