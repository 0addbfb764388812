"""The memory of a key-value cache in torch tensors: for models that torch computes, on any device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from outrider.cache.pool import Pool, Rows, small_pages

_LEAST = 1e-36
"""Heads whose largest magnitude is at most this get codes of zero: the inverse of their scale might be infinite."""


@dataclass(frozen=True)
class TorchPool(Pool):
    """A ``Pool`` of tensors: ``k`` and ``v`` of any float type, or int8."""

    scale_dtype: ClassVar[torch.dtype] = torch.float32

    @staticmethod
    def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str) -> Tensor:
        if torch.device(device).type != "cpu":
            return torch.zeros(shape, dtype=dtype, device=device)
        size = math.prod(shape) * dtype.itemsize
        return torch.frombuffer(small_pages(max(1, size)), dtype=torch.uint8)[:size].view(dtype).view(shape)

    def index(self, rows: Sequence[int]) -> Tensor:
        return torch.tensor(rows, dtype=torch.int64, device=self.k[0].device)

    def write(self, layer: int, rows: Rows, k: Any, v: Any) -> None:
        if self.value_dim:
            assert not self.k_scales
            self.k[layer][rows] = k
            return
        for held, scales, x in ((self.k, self.k_scales, k), (self.v, self.v_scales, v)):
            if scales:
                held[layer][rows], scales[layer][rows] = _quantise(x)
            else:
                held[layer][rows] = x

    def read(self, layer: int, rows: Rows) -> tuple[Tensor, Tensor]:
        if self.value_dim:
            k = _rows(self.k[layer], rows)
            return k, k[..., : self.value_dim]
        k, v = _rows(self.k[layer], rows), _rows(self.v[layer], rows)
        if not self.k_scales:
            return k, v
        k_scales, v_scales = _rows(self.k_scales[layer], rows), _rows(self.v_scales[layer], rows)
        return k.float() * k_scales[..., None], v.float() * v_scales[..., None]


def _rows(held: Tensor, rows: Tensor | slice) -> Tensor:
    return held[rows] if isinstance(rows, slice) else held.index_select(0, rows)


def _quantise(x: Tensor) -> tuple[Tensor, Tensor]:
    """Codes (int8, of x's shape) and scales (float32, without the last dimension), with the native library's bits.

    Scale: largest magnitude / 127, NaN if a number is not finite; code: the nearest integer, ties to even.
    """
    x = x.float()
    largest = x.abs().amax(-1)
    finite = x.isfinite().all(-1)
    inverse = torch.where(finite & (largest > _LEAST), 127 / largest, 0.0)
    codes = (x * inverse[..., None]).nan_to_num(0.0).round().to(torch.int8)
    return codes, torch.where(finite, largest / 127, torch.nan)
