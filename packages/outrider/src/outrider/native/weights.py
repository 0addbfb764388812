"""Matrices in the native library's layout: panels of 16 outputs, packed from files or from arrays."""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from outrider.errors import ConfigError, ModelFormatError
from outrider.native.arena import aligned_memory
from outrider.native.context import Context, current_context, loading_context
from outrider.native.gguf_types import gguf_number
from outrider.native.library import native_library
from outrider.native.stored import GGUF_TYPES, StoredTensor, code_table
from outrider.native.structs import SourceStruct, WeightStruct

__all__ = ["NativeWeight", "StoredRows", "Target", "pack", "pack_array"]

Floats = NDArray[np.float32]

Target = Literal["float32", "bfloat16", "q8_0", "q4_0", "q4_1"]

_TARGETS: dict[str | None, int] = {None: 0, "float32": 1, "bfloat16": 2, "q8_0": 3, "q4_0": 4, "q4_1": 5}
_PANEL_OUTPUTS = 16
_NO_MEMORY, _DAMAGED, _UNKNOWN_TYPE, _BAD_SIZE, _TOO_LARGE = 1, 16, 17, 18, 19


class NativeWeight:
    """A packed matrix [outputs, inputs]; owns the memory that ``struct`` points to."""

    def __init__(
        self,
        struct: WeightStruct,
        panels: NDArray[np.uint8],
        bias: NDArray[np.float32] | None,
        context: Context | None = None,
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
    context: Context | None = None,
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
    _check(stored, target)
    rows, inputs = stored.shape
    row_order = _compose(stored.order, order)
    outputs = rows if row_order is None else len(row_order)
    data = np.ascontiguousarray(stored.data).reshape(-1).view(np.uint8)
    table = code_table(stored.type)
    source = SourceStruct(
        type=gguf_number(stored.type), target=_TARGETS[target], rows=rows, inputs=inputs, outputs=outputs,
        order=None if row_order is None else row_order.ctypes.data, data=data.ctypes.data, data_bytes=data.nbytes,
    )  # fmt: skip
    if table is not None:
        source.grid, source.grid_bytes = table.grid.ctypes.data, table.grid.nbytes
        source.values[:] = table.values.tolist()
    weight = WeightStruct()
    native = native_library()
    _raise_for(native.outrider_plan_weight(ctypes.byref(source), ctypes.byref(weight)), stored, target)
    count = -(-outputs // _PANEL_OUTPUTS)
    panels = aligned_memory(count * weight.panel_bytes)
    status = native.outrider_pack(ctypes.byref(source), 0, count, panels.ctypes.data, panels.nbytes)
    _raise_for(status, stored, target)
    return NativeWeight(weight, panels, _packed_bias(bias, outputs), context or loading_context())


def pack_array(
    array: Floats, target: Target | None = None, *, bias: Floats | None = None, context: Context | None = None
) -> NativeWeight:
    """Pack a matrix of numbers, float32 [outputs, inputs]. Arguments and errors as for ``pack``."""
    return pack(StoredTensor.of(array), bias=bias, target=target, context=context)


def _check(stored: StoredTensor, target: str | None) -> None:
    if target not in _TARGETS:
        known = ", ".join(name for name in _TARGETS if name)
        raise ConfigError(f"target={target!r} is unknown: use one of {known}")
    if stored.type not in GGUF_TYPES:
        raise ModelFormatError(f"type {stored.type} cannot be packed: use one of {', '.join(GGUF_TYPES)}")
    if len(stored.shape) != 2:
        raise ModelFormatError(f"a tensor of shape {list(stored.shape)} cannot be packed: a matrix has two dimensions")
    if not all(0 < size < 2**63 for size in stored.shape):
        raise ModelFormatError(f"a tensor of shape {list(stored.shape)} cannot be packed: its sizes are out of range")


def _compose(first: NDArray[np.int64] | None, then: NDArray[np.int64] | None) -> NDArray[np.int64] | None:
    if then is None:
        return None if first is None else np.ascontiguousarray(first, np.int64)
    order: NDArray[np.int64] = np.ascontiguousarray(then, np.int64)
    if first is None:
        return order
    if len(order) and not 0 <= order.min() <= order.max() < len(first):
        raise IndexError(f"a row order from {order.min()} to {order.max()} is not within {len(first)} rows")
    return np.ascontiguousarray(first[order], np.int64)


def _packed_bias(bias: Floats | None, outputs: int) -> NDArray[np.float32] | None:
    if bias is None:
        return None
    if tuple(bias.shape) != (outputs,):
        raise ModelFormatError(f"a bias of shape {list(bias.shape)} does not fit {outputs} outputs")
    if not np.isfinite(bias).all():
        raise ModelFormatError("a bias holds NaN or infinity: download the model again")
    return np.array(bias, np.float32)


def _raise_for(status: int, stored: StoredTensor, target: str | None) -> None:
    about = f"{stored.type} {list(stored.shape)}"
    if status == _NO_MEMORY:
        raise MemoryError(f"no memory to pack a tensor {about}")
    if status == _DAMAGED:
        raise ModelFormatError(f"a tensor {about} holds NaN or infinity: download the model again")
    if status == _TOO_LARGE:
        raise ModelFormatError(f"a tensor {about} holds numbers too large for {target}: use float32")
    if status == _UNKNOWN_TYPE:
        raise ModelFormatError(f"type {stored.type} cannot be packed: use one of {', '.join(GGUF_TYPES)}")
    if status == _BAD_SIZE:
        raise ModelFormatError(f"a tensor {about} does not fit {stored.data.nbytes} bytes: download the model again")
    if status:
        raise IndexError(f"a row order for a tensor {about} names a row that is not there")
