"""Arrays at the edge between the core, which computes with NumPy, and models that hold theirs on a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["Array", "Floats", "as_floats", "bfloat16", "columns", "host"]

Floats = NDArray[np.float32]


class Array(Protocol):
    """What the core asks of a model's numbers: a NumPy array has it, and so has a torch tensor on any device."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: Any, /) -> Any: ...


def host(x: Array) -> Floats:
    """``x`` as float32 on the CPU: itself where it is that already, else a copy; do not modify it."""
    if isinstance(x, np.ndarray):
        return x if x.dtype == np.float32 else x.astype(np.float32)
    tensor: Any = x  # of torch, which the core does not import
    array: Floats = tensor.detach().float().cpu().numpy()
    return array


def as_floats(x: Any) -> Any:
    """As ``host``, of arrays and tensors of floats; anything else is given back, for whoever refuses it."""
    tensor = getattr(x, "is_floating_point", None)
    if isinstance(x, np.ndarray):
        return host(x) if np.issubdtype(x.dtype, np.floating) else x
    return host(x) if tensor is not None and tensor() else x


def bfloat16(x: Floats) -> NDArray[np.uint16]:
    """The nearest bfloat16 of each number, ties to even, as 16 bits: NumPy has no such type. NaN stays NaN."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded: NDArray[np.uint16] = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(x), np.uint16(0x7FC0), rounded)


def columns(x: Array, parts: Sequence[slice]) -> Array:
    """Columns of ``x``, [n, width], one part beside the other, where ``x`` is."""
    if isinstance(x, np.ndarray):
        return np.concatenate([x[:, part] for part in parts], axis=1)
    tensor: Any = x
    joined: Array = tensor.new_empty(len(x), sum(part.stop - part.start for part in parts))
    at = 0
    for part in parts:
        width = part.stop - part.start
        joined[:, at : at + width] = tensor[:, part]  # type: ignore[index]
        at += width
    return joined
