"""A tensor as its file holds it, and the tables by which some of GGUF's formats are read."""

from __future__ import annotations

import mmap
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.errors import ModelFormatError

__all__ = ["GGUF_TYPES", "CodeTable", "StoredTensor", "code_table"]

GGUF_TYPES: tuple[str, ...] = (
    *("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
    *("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS"),
    *("TQ1_0", "TQ2_0", "MXFP4", "NVFP4", "Q1_0", "Q2_0"),
)
"""Types of tensors that the native library unpacks, by their GGUF names."""


_FLOATS = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}
"""NumPy's dtypes of float types; bfloat16 is the upper half of a float32."""


@dataclass(frozen=True, eq=False)
class StoredTensor:
    """A tensor's bytes as in its file."""

    type: str
    """A name of ``GGUF_TYPES``; safetensors files have F32, F16 and BF16."""
    shape: tuple[int, ...]
    data: NDArray[np.uint8]
    """A view of the mapped file, one byte each."""
    order: NDArray[np.int64] | None = None
    """The file's row for each row of the tensor; None if they are the same. If fewer, ``shape`` has the file's."""
    swapped: int = 0
    """Of each of so many blocks of rows, one for a head, rows and columns are to be exchanged; 0: of none."""
    plus: float = 0.0
    """Added to every number; for norms only."""
    negative_exponential: bool = False
    """Each number x means -e to the power of x; for the decay of recurrent layers only."""
    scales: NDArray[np.uint8] | None = None
    """Of MXFP4 whose scales lie apart, [rows, inputs / 32]: neighbours share a byte, the first in its low half."""
    transposed: bool = False
    """Whether the data of a matrix of floats are [inputs, rows]."""

    @classmethod
    def of(cls, array: NDArray[np.float32]) -> StoredTensor:
        """An array in memory, stored as float32."""
        data = np.ascontiguousarray(array, np.float32).reshape(-1).view(np.uint8)
        return cls("F32", tuple(array.shape), data)

    def release(self, first: int = 0, last: int | None = None) -> None:
        """Tell the system that the file's pages are not needed for now: those read so far count as memory of ours.

        ``first``, ``last``: bytes of ``data``; None: to its end.
        """
        mapped = getattr(self.data, "_mmap", None)
        if mapped is None or not hasattr(mmap, "MADV_DONTNEED"):
            return
        stop = self.offset + (self.data.nbytes if last is None else last)
        start = self.offset + first
        start -= start % mmap.ALLOCATIONGRANULARITY
        mapped.madvise(mmap.MADV_DONTNEED, start, stop - start)

    @property
    def offset(self) -> int:
        """Byte of the mapped file at which the data begin; 0 for a tensor in memory."""
        return _offset(self.data)

    @property
    def places(self) -> tuple[int, int | None, bool]:
        """Where the file has the numbers: byte of the data, byte of scales apart, and whether they are transposed."""
        return self.offset, None if self.scales is None else _offset(self.scales), self.transposed

    @property
    def mapped_file(self) -> str | None:
        """The file that holds the data; None for a tensor in memory."""
        name = getattr(self.data, "filename", None)
        return None if name is None else str(name)

    @property
    def file(self) -> str:
        """The mapped file, for messages."""
        return self.mapped_file or "a tensor in memory"

    def numbers(self) -> NDArray[np.float32]:
        """The tensor of a float type (such as a bias or norm), as float32 of ``shape``."""
        if self.type not in _FLOATS:
            raise ModelFormatError(f"a tensor of type {self.type} and shape {list(self.shape)} holds no plain floats")
        stored = np.frombuffer(self.data.tobytes(), _FLOATS[self.type])
        if self.type == "BF16":
            stored = (stored.astype(np.uint32) << 16).view(np.float32)
        values = stored.astype(np.float32).reshape(self.shape)  # a writable copy
        values = values if self.order is None else values[self.order]
        if self.negative_exponential:  # by way of double precision, so that all libraries round to the same number
            with np.errstate(over="ignore"):  # of a damaged file
                values = -np.exp(values.astype(np.float64)).astype(np.float32)
        return values + np.float32(self.plus) if self.plus else values


def _offset(data: NDArray[np.uint8]) -> int:
    mapped = getattr(data, "_mmap", None)
    return 0 if mapped is None else data.ctypes.data - np.frombuffer(mapped, np.uint8).ctypes.data


@dataclass(frozen=True, eq=False)
class CodeTable:
    """The values of a format's codes.

    ``grid`` (uint8 [entries, 8 or 4]) holds levels 0 to 7, for which a set sign, or in IQ1 a set shift, adds 8.
    """

    values: NDArray[np.int8]  # [16]
    grid: NDArray[np.uint8] = field(default_factory=lambda: np.empty((0, 8), np.uint8))


@cache
def code_table(kind: str) -> CodeTable | None:
    """The table of a format, from the ``gguf`` package; None for formats that count evenly."""
    if not kind.startswith(("IQ", "MXFP4", "NVFP4")):
        return None
    from gguf import quants  # a tenth of a second, for these formats alone

    if kind in ("IQ4_NL", "IQ4_XS"):
        return CodeTable(_values(quants.IQ4_NL.kvalues))
    if kind in ("MXFP4", "NVFP4"):
        return CodeTable(_values(quants.MXFP4.kvalues))
    format_class: Any = getattr(quants, kind)
    format_class.init_grid()
    levels = np.array(format_class.grid_map)
    grid = np.searchsorted(levels, format_class.grid.reshape(format_class.grid_shape)).astype(np.uint8)
    if kind.startswith("IQ1"):  # weights are (level - 1 +- 1/8) times a scale: 8 times that is an integer
        return CodeTable(_values([*(8 * levels + 1), *[0] * 5, *(8 * levels - 1)]), grid)
    return CodeTable(_values([*levels, *[0] * (8 - len(levels)), *-levels]), grid)


def _values(values: Any) -> NDArray[np.int8]:
    table = np.zeros(16, np.int8)
    table[: len(values)] = values
    return table
