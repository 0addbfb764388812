"""The memory of a key-value cache: numbered rows of keys and values, as floats or as 8-bit codes with scales."""

from __future__ import annotations

import contextlib
import math
import mmap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, Self

import numpy as np

from outrider.extensions import extension

DType = Any
"""``"float32"``, ``"bfloat16"`` or ``"int8"``, held by NumPy; or a dtype of torch, held by torch (``TorchPool``)."""

Rows = Any
"""Rows of a pool: a slice, or row numbers [n] (``Pool.index``)."""

_NUMPY: dict[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(np.uint16),
    "int8": np.dtype(np.int8),
}
"""NumPy has no bfloat16: the native library reads and writes it as 16 bits."""


@dataclass(frozen=True, kw_only=True)
class RowShape:
    """What a row of a cache consists of: keys and values of every layer."""

    layers: int
    kv_heads: int
    head_dim: int
    value_dim: int = 0  # numbers at the beginning of a key that are its value; 0: values are apart
    dtype: DType
    device: Any = "cpu"  # of a backend's tensors
    heads: tuple[tuple[int, int], ...] = ()  # key heads and dimensions of each layer; empty: all layers are alike

    @property
    def each(self) -> Sequence[tuple[int, int]]:
        """Key heads and dimensions of each layer."""
        return self.heads or [(self.kv_heads, self.head_dim)] * self.layers


class PoolObserver(Protocol):
    """Is called when rows are moved or zeroed outside of forward passes."""

    def copied(self, targets: Sequence[int], sources: Sequence[int]) -> None: ...

    def zeroed(self, rows: Sequence[int]) -> None: ...


@dataclass(frozen=True)
class Pool:
    """All rows of a cache; a table of blocks maps a sequence's rows to them.

    ::

        k, v     [ rows of all sequences ... | filler | spare ]
        table    [7, 2]: rows 0 .. block-1 of a sequence lie from 7 * block on, the next ones from 2 * block on

    Of latents there are keys alone, whose first ``value_dim`` numbers are the values.

    In int8 a number is its code times its head's scale; of latents, values and the rest have scales of their own. Move
    rows with ``copy_rows``: it moves codes and scales, and calls ``observers``.
    """

    k: Sequence[Any]  # one a layer: [rows, kv_heads, head_dim], NumPy arrays here
    v: Sequence[Any]  # empty where keys begin with the values
    block: int  # rows of one entry of a table
    filler: int  # the last row that may be read, always finite; it stands for all rows beyond it
    spare: int  # a row for writes that nobody reads; its contents are arbitrary
    dtype: DType
    k_scales: Sequence[Any] = ()  # for int8, one a layer: float32 [rows, kv_heads]
    v_scales: Sequence[Any] = ()
    value_dim: int = 0
    observers: list[PoolObserver] = field(default_factory=list)

    scale_dtype: ClassVar[DType] = "float32"

    @classmethod
    def make(cls, rows: int, shape: RowShape, *, block: int, filler: int, spare: int) -> Self:
        """Rows of zeros. Raises ``RuntimeError`` or ``MemoryError`` if memory is short."""

        def arrays(dtype: DType, sizes: Sequence[tuple[int, ...]]) -> list[Any]:
            return [cls.zeros((rows, *size), dtype, shape.device) for size in sizes]

        dtype, heads = shape.dtype, [size[:1] for size in shape.each]
        k = arrays(dtype, shape.each)
        v = [] if shape.value_dim else arrays(dtype, shape.each)
        scales = "int8" in str(dtype)
        k_scales, v_scales = (arrays(cls.scale_dtype, heads) if scales else [] for _ in range(2))
        return cls(k, v, block, filler, spare, dtype, k_scales, v_scales, shape.value_dim)

    @staticmethod
    def zeros(shape: tuple[int, ...], dtype: DType, device: Any) -> Any:
        """Zeros that take memory only where they are written, in small pages.

        NumPy would ask for huge pages. The first token of a sequence would then take, and clear, two huge pages a
        layer, one for keys and one for values: 120 MB in a model of 30 layers.
        """
        numbers = _NUMPY[dtype]
        count = math.prod(shape)
        return np.frombuffer(small_pages(max(1, count) * numbers.itemsize), numbers, count).reshape(shape)

    def index(self, rows: Sequence[int]) -> Rows:
        """Row numbers [n] as this pool's methods take them."""
        return np.array(rows, np.int64)

    @property
    def arrays(self) -> list[Any]:
        """All arrays with a part of each row: keys, values and their scales, [rows, ...] each."""
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

    def read_rows(self, rows: Rows) -> tuple[Any, ...]:
        """A copy of the rows that ``index`` gave, of all arrays."""
        return tuple(held[rows].copy() if isinstance(rows, slice) else held[rows] for held in self.arrays)

    def write_rows(self, rows: Rows, parts: Sequence[Any]) -> None:
        """Store a copy from ``read_rows``. ``observers`` are not called."""
        for held, part in zip(self.arrays, parts, strict=True):
            held[rows] = part

    def write(self, layer: int, rows: Rows, k: Any, v: Any) -> None:
        """Store k, v: float [n, kv_heads, head_dim] as n rows of a layer.

        Raises TypeError unless the type is float32: the native library writes the other types itself.
        """
        if self.dtype != "float32":
            raise TypeError(f"rows of {self.dtype} are written by the native library alone")
        self.k[layer][rows] = k
        if not self.value_dim:
            self.v[layer][rows] = v

    def read(self, layer: int, rows: Rows) -> tuple[Any, Any]:
        """Keys and values of n rows, [n, kv_heads, head_dim]: int8 as float32, other types as they are held."""
        k = self.k[layer][rows]
        v = k[..., : self.value_dim] if self.value_dim else self.v[layer][rows]
        if not self.k_scales:
            return k, v
        scales = self.k_scales[layer][rows], self.v_scales[layer][rows]
        if self.value_dim:
            values = v.astype(np.float32) * scales[1][..., None]
            rest = k[..., self.value_dim :].astype(np.float32) * scales[0][..., None]
            return np.concatenate([values, rest], axis=-1), values
        return k.astype(np.float32) * scales[0][..., None], v.astype(np.float32) * scales[1][..., None]


def itemsize(dtype: DType) -> int:
    """Bytes of a number."""
    return _NUMPY[dtype].itemsize if isinstance(dtype, str) else int(dtype.itemsize)


def token_bytes(
    *,
    layers: int,
    kv_heads: int,
    head_dim: int,
    value_dim: int = 0,
    dtype: DType,
    heads: Sequence[tuple[int, int]] = (),
) -> int:
    """Bytes of one token's keys and values in all layers, scales included; see ``RowShape``."""
    scale = itemsize("float32") if "int8" in str(dtype) else 0
    parts = 1 if value_dim else 2
    sizes = heads or [(kv_heads, head_dim)] * layers
    return sum(each * (parts * size * itemsize(dtype) + 2 * scale) for each, size in sizes)


def _numbers(rows: Rows) -> Sequence[int]:
    return range(rows.start, rows.stop) if isinstance(rows, slice) else rows.tolist()


def small_pages(size: int) -> mmap.mmap:
    """``size`` bytes of private zeroed memory in small pages. Raises MemoryError if memory is short."""
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
