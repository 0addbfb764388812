"""Matrices in the native library's layout: panels of 16 outputs, packed from files or from arrays."""

from __future__ import annotations

import ctypes
import os
import weakref
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from outrider.errors import ModelFormatError
from outrider.native.arena import aligned_memory
from outrider.native.context import NativeContext, current_context, loading_context
from outrider.native.library import native_library
from outrider.native.plans import Plan, Target
from outrider.native.stored import StoredTensor
from outrider.native.structs import WeightStruct

__all__ = ["NativeWeight", "StoredRows", "Target", "pack", "pack_array", "packed_bias", "swapped_heads"]

Floats = NDArray[np.float32]


class NativeWeight:
    """A packed matrix [outputs, inputs]; owns the memory that ``struct`` points to."""

    def __init__(
        self,
        struct: WeightStruct,
        panels: NDArray[np.uint8],
        bias: NDArray[np.float32] | None,
        context: NativeContext | None = None,
    ) -> None:
        """``context``: to multiply in; None: the current one at the first product."""
        self.struct, self.context = struct, context
        self.panels = panels
        self.bias = bias
        struct.panels = panels.ctypes.data
        struct.bias = None if bias is None else bias.ctypes.data
        self.outputs = int(struct.outputs)
        self._address, self._multiply = ctypes.addressof(struct), native_library().outrider_linear

    @property
    def inputs(self) -> int:
        return int(self.struct.inputs)

    @property
    def nbytes(self) -> int:
        """Bytes of the panels and the bias."""
        return self.panels.nbytes + (0 if self.bias is None else self.bias.nbytes)

    def rows(self, ids: NDArray[np.int64]) -> Floats:
        """float32 [n, inputs]: rows ``ids`` (int64 [n]) as numbers. Raises ``IndexError`` for an id out of range."""
        ids = np.ascontiguousarray(ids, np.int64)
        out = np.empty((len(ids), self.inputs), np.float32)
        if native_library().outrider_rows(self._address, len(ids), ids.ctypes.data, out.ctypes.data):
            raise IndexError(f"ids {ids.tolist()[:8]} are not all rows of a matrix of {self.outputs}")
        return out

    def __call__(self, x: Floats) -> Floats:
        """``x W' + bias``: float32 [n, inputs] -> float32 [n, outputs]."""
        x = np.ascontiguousarray(x, np.float32)
        rows = x.shape[0]
        if x.shape[1:] != (self.inputs,):
            raise ValueError(f"rows of shape {list(x.shape)} cannot be multiplied by a matrix of {self.inputs} inputs")
        y = np.empty((rows, self.outputs), np.float32)
        context = self.context = self.context or current_context()
        if self._multiply(context.address, self._address, rows, x.ctypes.data, y.ctypes.data):
            raise MemoryError(f"no memory to multiply {rows} rows by a matrix of {self.outputs} x {self.inputs}")
        return y

    def __repr__(self) -> str:
        return f"NativeWeight({self.outputs}, {self.inputs}, bytes={self.nbytes})"


class StoredRows:
    """A matrix of a file that is only read by rows: mapped, in the file's format.

    Replacing the file by another does not affect the mapping. Writing to the file or truncating it is detected, as
    numbers would change and missing pages would end this process.
    """

    def __init__(self, stored: StoredTensor) -> None:
        self._stored = stored
        self._path = getattr(stored.data, "filename", None)
        self._file = None if self._path is None else os.open(self._path, os.O_RDONLY)
        if self._file is not None:
            weakref.finalize(self, os.close, self._file).atexit = False  # a thread may still read at exit
        self._state = self._now()

    def _now(self) -> tuple[int, int] | None:
        if self._file is None:
            return None
        found = os.fstat(self._file)
        return found.st_size, found.st_mtime_ns

    def rows(self, ids: NDArray[np.int64]) -> Floats:
        """float32 [n, inputs], as ``NativeWeight.rows``. Raises ``ModelFormatError`` if the file has changed."""
        if not len(ids):
            return np.empty((0, self._stored.shape[1]), np.float32)
        if self._now() != self._state:
            raise ModelFormatError(f"{self._path} was changed while its model runs: load it again")
        return pack(self._stored, order=ids).rows(np.arange(len(ids)))


def pack(
    stored: StoredTensor,
    *,
    order: NDArray[np.int64] | None = None,
    bias: Floats | None = None,
    target: Target | None = None,
    context: NativeContext | None = None,
) -> NativeWeight:
    """Pack a matrix of a file.

    Args:
        order: int64 [outputs]; packed row i is row ``order[i]`` of the tensor. It applies after the tensor's own order.
        bias: [outputs], in the packed order.
        target: a type to round to; None keeps the stored numbers exactly.
        context: to multiply in; None: the loading model's, else the current one at the first product.

    Raises:
        ModelFormatError: the data do not fit the shape, hold NaN or infinity, or numbers too large for ``target``.
        ConfigError: the native library is unavailable.
        MemoryError: not enough memory for a row.
    """
    plan = Plan(stored, target, order)
    panels = aligned_memory(plan.nbytes)
    plan.pack(0, plan.panels, panels)
    return NativeWeight(plan.struct, panels, packed_bias(bias, int(plan.struct.outputs)), context or loading_context())


def pack_array(
    array: Floats, target: Target | None = None, *, bias: Floats | None = None, context: NativeContext | None = None
) -> NativeWeight:
    """Pack a matrix of numbers, float32 [outputs, inputs]. Arguments and errors as for ``pack``."""
    return pack(StoredTensor.of(array), bias=bias, target=target, context=context)


def swapped_heads(stored: StoredTensor) -> StoredTensor:
    """The tensor in memory, with rows and columns of each of its ``swapped`` blocks of rows exchanged.

    Quantised numbers become float16.
    """
    rows = np.arange(stored.shape[0]) if stored.order is None else stored.order
    if stored.type in ("F32", "F16", "BF16"):
        kind, dtype = stored.type, np.uint32 if stored.type == "F32" else np.uint16
        numbers = np.frombuffer(stored.data, dtype).reshape(stored.shape)[rows]
    else:
        kind, dtype = "F16", np.uint16
        plain = replace(stored, order=None, swapped=0)
        numbers = pack(plain, order=rows).rows(np.arange(len(rows))).astype(np.float16).view(dtype)
    blocks = numbers.reshape(stored.swapped, -1, stored.shape[1]).swapaxes(1, 2)
    data = np.ascontiguousarray(blocks).reshape(-1).view(np.uint8)
    return StoredTensor(kind, (blocks.shape[0] * blocks.shape[1], blocks.shape[2]), data)


def packed_bias(bias: Floats | None, outputs: int) -> NDArray[np.float32] | None:
    """A copy of a bias. Raises ``ModelFormatError`` unless it has ``outputs`` finite numbers."""
    if bias is None:
        return None
    if tuple(bias.shape) != (outputs,):
        raise ModelFormatError(f"a bias of shape {list(bias.shape)} does not fit {outputs} outputs")
    if not np.isfinite(bias).all():
        raise ModelFormatError("a bias holds NaN or infinity: download the model again")
    return np.array(bias, np.float32)
