"""Arguments of the native library's forward pass: a cache, and the rows of each sequence."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.cache import KVCache
from outrider.cache.states import RecurrentStates
from outrider.errors import EngineDeadError
from outrider.models.batch import Span
from outrider.models.config import ModelConfig
from outrider.models.experts import ExpertReads
from outrider.native.context import NativeContext
from outrider.native.library import native_library
from outrider.native.model_structs import CacheStruct, SpanStruct, StatesStruct

__all__ = [
    "CacheView", "address", "check_status", "expert_counts", "expert_reads", "int64s", "norm_rows", "rotation_table",
    "span_structs",
]  # fmt: skip

_WINDOWS = 6
"""Sizes of windows of rows that experts are counted over, each twice the one before: ``OUTRIDER_WINDOWS`` less one."""
_CACHE_TYPES = {"float32": 0, "bfloat16": 1, "int8": 2}


class CacheView:
    """The library's struct of a cache; ``address`` refers to it."""

    def __init__(self, cache: KVCache) -> None:
        pool = cache.pool
        heads = [size for keys in pool.k for size in keys.shape[1:]]
        self._heads = (ctypes.c_int32 * len(heads))(*heads)
        self._keys, self._values = _pointers(pool.k), _pointers(pool.k if pool.value_dim else pool.v)
        self._key_scales, self._value_scales = _pointers(pool.k_scales), _pointers(pool.v_scales)
        self._struct = CacheStruct(
            type=_CACHE_TYPES[str(pool.dtype).removeprefix("torch.")],
            block=pool.block,
            rows=len(pool.k[0]),
            layers=len(pool.k),
            kv_heads=pool.k[0].shape[1],
            head_dim=pool.k[0].shape[2],
            value_dim=pool.value_dim,
            heads=ctypes.addressof(self._heads),
            states=None if cache.states is None else self._states_of(cache.states),
            keys=ctypes.addressof(self._keys),
            values=ctypes.addressof(self._values),
            key_scales=ctypes.addressof(self._key_scales) if pool.k_scales else None,
            value_scales=ctypes.addressof(self._value_scales) if pool.v_scales else None,
        )
        self.address = ctypes.byref(self._struct)

    def _states_of(self, states: RecurrentStates) -> int:
        shape = states.shape
        self._arrays = [_pointers(arrays) for arrays in (states.state, states.inputs, states.updates)]
        state, inputs, updates = map(ctypes.addressof, self._arrays)
        self._states = StatesStruct(
            slots=states.places,
            layers=shape.layers,
            key_heads=shape.key_heads,
            value_heads=shape.value_heads,
            key_dim=shape.key_dim,
            value_dim=shape.value_dim,
            convolution=shape.convolution,
            pending=states.pending,
            state=state,
            inputs=inputs,
            updates=updates,
        )
        return ctypes.addressof(self._states)


def _pointers(arrays: Any) -> Any:
    return (ctypes.c_void_p * len(arrays))(*map(_pointer, arrays))


def _pointer(array: Any) -> int:
    """The address of a NumPy array's data, or of those of a torch tensor on the CPU."""
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data_ptr())


def int64s(values: Sequence[int]) -> array[int]:
    """``values`` as an array of int64, which the library reads.

    The array is not NumPy's. A forward pass empties the processor's caches, so that a step's cost is the code and
    memory that it touches: the first call into NumPy costs as much as the rest of the call.
    """
    return array("q", values)


def address(values: array[int]) -> int:
    return values.buffer_info()[0]


def expert_counts(config: ModelConfig) -> array[int] | None:
    """Where the library counts the experts of a pass; None for a model without."""
    return None if config.experts is None else int64s([0] * (1 + _WINDOWS))


def expert_reads(counted: Sequence[int], rows: int) -> ExpertReads:
    """From the library's counts of a pass over ``rows`` rows."""
    whole = {1 << i: rows >> i for i in range(_WINDOWS) if rows >> i}
    found = zip(whole.items(), counted[1:], strict=False)
    return ExpertReads(counted[0], {size: count / windows for (size, windows), count in found})


def span_structs(spans: Sequence[Span], cache: KVCache) -> tuple[Any, list[object]]:
    """An array of the library's spans, and the arrays that it points to: keep them until the pass is over."""
    held: list[object] = []
    structs, states = (SpanStruct * len(spans))(), cache.states
    for struct, span in zip(structs, spans, strict=True):
        table = array("i", cache.table(span.slot, span.start + span.count))
        struct.start, struct.count = span.start, span.count
        struct.entries, struct.table = len(table), address(table)
        if states is not None:
            struct.slot, struct.settled, struct.kept = states.row(span.state), states.settled(span.state), span.num_kept
        held.append(table)
        if span.mask is not None:
            mask = np.ascontiguousarray(span.mask)  # a byte each
            struct.mask_rows, struct.mask_keys = mask.shape
            struct.mask = mask.ctypes.data
            held.append(mask)
    return structs, held


def check_status(status: int) -> None:
    """Raise the error that a status of the library means; 0 is none.

    Raises MemoryError, EngineDeadError, or ValueError for an argument out of range.
    """
    if status == 1:
        raise MemoryError("no memory for a forward pass: use a smaller max_batched_tokens")
    if status == 3:
        raise EngineDeadError("a process that runs a share of the model is gone: restart")
    if status:
        raise ValueError("the native library was given a size, an id or a position out of range")


def norm_rows(
    context: NativeContext, x: NDArray[np.float32], weight: int | None, eps: float, *, bias: int | None = None
) -> NDArray[np.float32]:
    """The RMS norm of x, float32 [n, d]; with a bias, its layer norm. ``weight``, ``bias``: addresses of [d]."""
    x = np.ascontiguousarray(x, np.float32)
    out = np.empty_like(x)
    where = x.ctypes.data, weight, bias, eps, out.ctypes.data
    check_status(native_library().outrider_norm(context.address, *x.shape, *where))
    return out


def rotation_table(
    inverse: NDArray[np.float64], positions: int, magnitude: NDArray[np.float64] | None = None
) -> NDArray[np.float32]:
    """float32 [positions, 2, head_dim / 2]: cosines, then sines, of each pair's angle at each position.

    Args:
        inverse: float64 [head_dim / 2], from ``inverse_frequencies``.
        magnitude: float64 [head_dim / 2], from ``magnitudes``; None: 1.
    """
    inverse = np.ascontiguousarray(inverse)
    out = np.empty((positions, 2, len(inverse)), np.float32)
    check_status(native_library().outrider_rotations(*out.shape[::2], inverse.ctypes.data, out.ctypes.data))
    if magnitude is not None:
        out *= magnitude.astype(np.float32)
    return out
