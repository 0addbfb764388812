"""Rotary position embedding on adjacent pairs, as one complex multiplication."""

from __future__ import annotations

import torch
from torch import Tensor

from outrider.models.frequencies import Doubles
from outrider_torch.kernels.serial import serial_rows


def rotations(inverse: Doubles, positions: int, magnitude: Doubles | None = None) -> Tensor:
    """complex64 [positions, 1, head_dim / 2]: the rotation of each pair at each position (Su et al. 2021).

    Args:
        inverse: float64 [head_dim / 2], from ``inverse_frequencies``.
        magnitude: float64 [head_dim / 2], from ``magnitudes``; None: 1.
    """
    turns = torch.from_numpy(inverse)
    angles = torch.arange(positions, dtype=torch.float64)[:, None] * turns
    size = torch.ones_like(turns) if magnitude is None else torch.from_numpy(magnitude)
    return torch.polar(size.expand_as(angles).contiguous(), angles).to(torch.complex64)[:, None]


def pair_rows(weight: Tensor, heads: int) -> Tensor:
    """Reorder projection rows [heads * head_dim, ...] from half-split pairs (i, i + d/2) to adjacent (2i, 2i + 1).

    Query and key rows are permuted alike, which preserves every product of a query with a key.
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
