"""The memory of a key-value cache: rows of keys and values by number, as floats or as 8-bit codes with scales."""

from __future__ import annotations

import contextlib
import math
import mmap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, Self

import numpy as np

from outrider.extensions import extension

__all__ = ["DType", "Pool", "PoolObserver", "Rows", "itemsize", "small_pages", "token_bytes"]

DType = Any
"""``"float32"``, ``"bfloat16"`` or ``"int8"``, held by NumPy; or a dtype of torch, held by torch (``TorchPool``)."""

Rows = Any
"""Rows of a pool: a slice, or whole numbers [n], in an array of the pool's kind (``Pool.index``)."""

_NUMPY: dict[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(np.uint16),
    "int8": np.dtype(np.int8),
}
"""NumPy has no bfloat16: the native library reads and writes it as 16 bits."""


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

    k: Sequence[Any]  # one a layer: [rows, kv_heads, head_dim], NumPy arrays here
    v: Sequence[Any]
    block: int  # rows that one entry of a table stands for
    filler: int  # the last row that may be read, and finite; rows beyond it are to be read as this one
    spare: int  # a row to write to what nobody will read; never read itself, as it may hold anything
    dtype: DType
    k_scales: Sequence[Any] = ()  # of int8, one a layer: float32 [rows, kv_heads]
    v_scales: Sequence[Any] = ()
    observers: list[PoolObserver] = field(default_factory=list)

    scale_dtype: ClassVar[DType] = "float32"

    @classmethod
    def make(
        cls,
        rows: int,
        *,
        layers: int,
        kv_heads: int,
        head_dim: int,
        dtype: DType,
        device: Any = "cpu",
        block: int,
        filler: int,
        spare: int,
    ) -> Self:
        """Rows of zeros. Raises ``RuntimeError`` or ``MemoryError`` if memory is short."""

        def arrays(dtype: DType, *shape: int) -> list[Any]:
            return [cls.zeros((rows, *shape), dtype, device) for _ in range(layers)]

        k, v = arrays(dtype, kv_heads, head_dim), arrays(dtype, kv_heads, head_dim)
        if "int8" not in str(dtype):
            return cls(k, v, block, filler, spare, dtype)
        scales = arrays(cls.scale_dtype, kv_heads), arrays(cls.scale_dtype, kv_heads)
        return cls(k, v, block, filler, spare, dtype, *scales)

    @staticmethod
    def zeros(shape: tuple[int, ...], dtype: DType, device: Any) -> Any:
        """Zeros that take up memory only where they are written to, a small page at a time.

        Not NumPy's: it asks for huge pages, of which the first token of a sequence takes one a layer for its keys and
        one for its values, 120 MB in a model of 30 layers, all of which has to be cleared.
        """
        numbers = _NUMPY[dtype]
        count = math.prod(shape)
        return np.frombuffer(small_pages(max(1, count) * numbers.itemsize), numbers, count).reshape(shape)

    def index(self, rows: Sequence[int]) -> Rows:
        """Row numbers as this pool takes them."""
        return np.array(rows, np.int64)

    @property
    def arrays(self) -> list[Any]:
        """Everything that a row consists of: [rows, ...] each."""
        return [*self.k, *self.v, *self.k_scales, *self.v_scales]

    def copy_rows(self, targets: Rows, sources: Rows) -> None:
        """Copy the rows ``sources`` to the rows ``targets``, as if all reads came before all writes."""
        for held in self.arrays:
            held[targets] = held[sources]
        for observer in self.observers:
            observer.copied(_numbers(targets), _numbers(sources))

    def zero_rows(self, rows: Rows) -> None:
        for held in self.arrays:
            held[rows] = 0
        for observer in self.observers:
            observer.zeroed(_numbers(rows))

    def write(self, layer: int, rows: Rows, k: Any, v: Any) -> None:
        """Store k, v: float [n, kv_heads, head_dim] as these n rows. float32 alone: the library writes its own."""
        if self.dtype != "float32":
            raise TypeError(f"rows of {self.dtype} are written by the native library alone")
        self.k[layer][rows], self.v[layer][rows] = k, v

    def read(self, layer: int, rows: Rows) -> tuple[Any, Any]:
        """Keys and values of n rows, [n, kv_heads, head_dim]: as they are held, or float32 where that is int8."""
        k, v = self.k[layer][rows], self.v[layer][rows]
        if not self.k_scales:
            return k, v
        scales = self.k_scales[layer][rows], self.v_scales[layer][rows]
        return k.astype(np.float32) * scales[0][..., None], v.astype(np.float32) * scales[1][..., None]


def itemsize(dtype: DType) -> int:
    """Bytes of a number."""
    return _NUMPY[dtype].itemsize if isinstance(dtype, str) else int(dtype.itemsize)


def token_bytes(*, layers: int, kv_heads: int, head_dim: int, dtype: DType) -> int:
    """Memory that keys and values of one token take in all layers, scales included."""
    scale = itemsize("float32") if "int8" in str(dtype) else 0
    return 2 * layers * kv_heads * (head_dim * itemsize(dtype) + scale)


def _numbers(rows: Rows) -> Sequence[int]:
    return range(rows.start, rows.stop) if isinstance(rows, slice) else rows.tolist()


def small_pages(size: int) -> mmap.mmap:
    """Private memory of zeros. Raises MemoryError if there is none."""
    try:
        if not hasattr(mmap, "MADV_NOHUGEPAGE"):
            return mmap.mmap(-1, size)
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, ValueError, OverflowError) as error:
        raise MemoryError(f"no memory for {size:,} bytes of cache") from error
    with contextlib.suppress(OSError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return memory


def pool_kind(dtype: DType) -> type[Pool]:
    """The kind of pool that holds numbers of this type: its name is NumPy's, anything else a backend's."""
    if isinstance(dtype, str):
        return Pool
    made: type[Pool] = extension("backends", "torch").TorchPool
    return made
