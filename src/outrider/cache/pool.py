"""The memory of a key-value cache: rows of keys and values by number, as floats or as 8-bit codes with scales."""

from __future__ import annotations

import contextlib
import math
import mmap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

__all__ = ["Pool", "PoolObserver", "token_bytes"]

_LEAST = 1e-36
"""Heads whose largest number is not above this have codes of zero, as the inverse of their scale may be infinite."""


class PoolObserver(Protocol):
    """Hears of rows that are moved or emptied outside of forward passes."""

    def copied(self, targets: Sequence[int], sources: Sequence[int]) -> None: ...

    def zeroed(self, rows: Sequence[int]) -> None: ...


@dataclass(frozen=True)
class Pool:
    """All rows of a cache by number, for code that finds a sequence's rows by a table.

    ::

        k, v     [ rows of all sequences ... | filler | spare ]
        table    [7, 2]: rows 0 .. block-1 of a sequence lie from 7 * block on, the next ones from 2 * block on

    In int8 a number is its code times its head's scale. Whoever moves rows uses ``copy_rows``, which moves all that
    they consist of, and tells ``observers``.
    """

    k: Sequence[Tensor]  # one a layer: [rows, kv_heads, head_dim]
    v: Sequence[Tensor]
    block: int  # rows that one entry of a table stands for
    filler: int  # the last row that may be read, and finite; rows beyond it are to be read as this one
    spare: int  # a row to write to what nobody will read; never read itself, as it may hold anything
    k_scales: Sequence[Tensor] = ()  # of int8, one a layer: float32 [rows, kv_heads]
    v_scales: Sequence[Tensor] = ()
    observers: list[PoolObserver] = field(default_factory=list)

    @classmethod
    def make(
        cls,
        rows: int,
        *,
        layers: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device | str,
        block: int,
        filler: int,
        spare: int,
    ) -> Pool:
        """Rows of zeros. Raises ``RuntimeError`` or ``MemoryError`` if memory is short."""

        def tensors(dtype: torch.dtype, *shape: int) -> list[Tensor]:
            return [_lazy_zeros((rows, *shape), dtype, device) for _ in range(layers)]

        k, v = tensors(dtype, kv_heads, head_dim), tensors(dtype, kv_heads, head_dim)
        if dtype != torch.int8:
            return cls(k, v, block, filler, spare)
        scales = tensors(torch.float32, kv_heads), tensors(torch.float32, kv_heads)
        return cls(k, v, block, filler, spare, *scales)

    @property
    def tensors(self) -> list[Tensor]:
        """Everything that a row consists of: [rows, ...] each."""
        return [*self.k, *self.v, *self.k_scales, *self.v_scales]

    def copy_rows(self, targets: Tensor | slice, sources: Tensor | slice) -> None:
        """Make the rows ``targets`` those that ``sources`` are now: int64 [n] each, or slices of n rows."""
        for held in self.tensors:
            held[targets] = _rows(held, sources)
        for observer in self.observers:
            observer.copied(_numbers(targets), _numbers(sources))

    def zero_rows(self, rows: Tensor | slice) -> None:
        for held in self.tensors:
            held[rows] = 0
        for observer in self.observers:
            observer.zeroed(_numbers(rows))

    def write(self, layer: int, rows: Tensor | slice, k: Tensor, v: Tensor) -> None:
        """Store k, v: float [n, kv_heads, head_dim] as these n rows."""
        for held, scales, x in ((self.k, self.k_scales, k), (self.v, self.v_scales, v)):
            if scales:
                held[layer][rows], scales[layer][rows] = _quantise(x)
            else:
                held[layer][rows] = x

    def read(self, layer: int, rows: Tensor | slice) -> tuple[Tensor, Tensor]:
        """Keys and values of n rows, [n, kv_heads, head_dim]: as they are held, or float32 where that is int8."""
        k, v = _rows(self.k[layer], rows), _rows(self.v[layer], rows)
        if not self.k_scales:
            return k, v
        k_scales, v_scales = _rows(self.k_scales[layer], rows), _rows(self.v_scales[layer], rows)
        return k.float() * k_scales[..., None], v.float() * v_scales[..., None]


def token_bytes(*, layers: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:
    """Memory that keys and values of one token take in all layers, scales included."""
    scale = torch.float32.itemsize if dtype == torch.int8 else 0
    return 2 * layers * kv_heads * (head_dim * dtype.itemsize + scale)


def _rows(held: Tensor, rows: Tensor | slice) -> Tensor:
    return held[rows] if isinstance(rows, slice) else held.index_select(0, rows)


def _numbers(rows: Tensor | slice) -> Sequence[int]:
    return range(rows.start, rows.stop) if isinstance(rows, slice) else rows.tolist()


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


def _lazy_zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str) -> Tensor:
    """Zeros that take up memory only where they are written to, a small page at a time.

    Not NumPy's: it asks for huge pages, of which the first token of a sequence takes one a layer for its keys and one
    for its values, 120 MB in a model of 30 layers, all of which has to be cleared.
    """
    if torch.device(device).type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    size = math.prod(shape) * dtype.itemsize
    return torch.frombuffer(_small_pages(max(1, size)), dtype=torch.uint8)[:size].view(dtype).view(shape)


def _small_pages(size: int) -> mmap.mmap:
    """Private memory. Raises MemoryError if there is none."""
    try:
        if not hasattr(mmap, "MADV_NOHUGEPAGE"):
            return mmap.mmap(-1, size)
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, ValueError, OverflowError) as error:
        raise MemoryError(f"no memory for {size:,} bytes of cache") from error
    with contextlib.suppress(OSError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return memory
