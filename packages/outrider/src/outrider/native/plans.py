"""A matrix to pack: its layout, the size of its panels, and packing of any range of them."""

from __future__ import annotations

import ctypes
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from outrider.errors import ConfigError, ModelFormatError
from outrider.native.gguf_types import gguf_number
from outrider.native.library import native_library
from outrider.native.stored import GGUF_TYPES, StoredTensor, code_table
from outrider.native.structs import SourceStruct, WeightStruct

__all__ = ["PANEL_OUTPUTS", "Plan", "Target"]

Target = Literal["float32", "bfloat16", "q8_0", "q4_0", "q4_1"]

PANEL_OUTPUTS = 16

_TARGETS: dict[str | None, int] = {None: 0, "float32": 1, "bfloat16": 2, "q8_0": 3, "q4_0": 4, "q4_1": 5}
_NO_MEMORY, _DAMAGED, _UNKNOWN_TYPE, _BAD_SIZE, _TOO_LARGE = 1, 16, 17, 18, 19


class Plan:
    """How a matrix of a file becomes panels of 16 outputs. Several threads may pack ranges of one plan."""

    def __init__(self, stored: StoredTensor, target: Target | None, order: NDArray[np.int64] | None = None) -> None:
        """Arguments and errors as for ``outrider.native.weights.pack``; no data are read."""
        _check(stored, target)
        self.stored, self.target = stored, target
        rows, inputs = stored.shape
        self.order = _compose(stored.order, order)
        outputs = rows if self.order is None else len(self.order)
        self._data = np.ascontiguousarray(stored.data).reshape(-1).view(np.uint8)
        table = code_table(stored.type)
        self._source = source = SourceStruct(
            type=gguf_number(stored.type), target=_TARGETS[target], rows=rows, inputs=inputs, outputs=outputs,
            order=None if self.order is None else self.order.ctypes.data,
            data=self._data.ctypes.data, data_bytes=self._data.nbytes,
        )  # fmt: skip
        if stored.scales is not None:
            self._scales = np.ascontiguousarray(stored.scales).reshape(-1)
            source.scales, source.scale_bytes = self._scales.ctypes.data, self._scales.nbytes
        source.transposed = stored.transposed
        if table is not None:
            source.grid, source.grid_bytes = table.grid.ctypes.data, table.grid.nbytes
            source.values[:] = table.values.tolist()
        self.struct = WeightStruct()
        """The layout, without panels."""
        native = native_library()
        self._pack = native.outrider_pack
        self._raise(native.outrider_plan_weight(ctypes.byref(source), ctypes.byref(self.struct)))
        self.panels = -(-outputs // PANEL_OUTPUTS)
        self.panel_bytes = int(self.struct.panel_bytes)

    @property
    def nbytes(self) -> int:
        """Bytes of all panels."""
        return self.panels * self.panel_bytes

    def pack(self, first: int, last: int, out: NDArray[np.uint8]) -> None:
        """Write the panels ``first`` to ``last - 1`` to ``out``, uint8 [(last - first) * panel_bytes]."""
        self._raise(self._pack(ctypes.byref(self._source), first, last, out.ctypes.data, out.nbytes))

    def release(self, first: int, last: int) -> None:
        """Let the file's pages of these panels no longer count as memory of this process."""
        if self.stored.transposed:  # these rows lie all over the data
            return
        start, stop = first * PANEL_OUTPUTS, min(last * PANEL_OUTPUTS, int(self.struct.outputs))
        if self.order is not None:
            used = self.order[start:stop]
            start, stop = int(used.min()), int(used.max()) + 1
        size = self._data.nbytes // self.stored.shape[0]
        self.stored.release(start * size, stop * size)

    def _raise(self, status: int) -> None:
        _raise_for(status, self.stored, self.target)


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
