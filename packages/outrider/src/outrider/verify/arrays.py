"""Functions of arrays that are NumPy's or a backend's tensors: the core computes with NumPy, models on a device."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


class Array(Protocol):
    """The array operations that the core requires; NumPy arrays and torch tensors on any device have them."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: Any, /) -> Any: ...


def host(x: Array) -> Floats:
    """``x`` as a float32 NumPy array, a copy unless ``x`` already is one; do not modify it."""
    if isinstance(x, np.ndarray):
        return x if x.dtype == np.float32 else x.astype(np.float32)
    tensor: Any = x  # a torch tensor: the core does not import torch
    array: Floats = tensor.detach().float().cpu().numpy()
    return array


def as_floats(x: Any) -> Any:
    """``host`` for arrays and tensors of floats; any other value is returned unchanged, for the caller to check."""
    tensor = getattr(x, "is_floating_point", None)
    if isinstance(x, np.ndarray):
        return host(x) if np.issubdtype(x.dtype, np.floating) else x
    return host(x) if tensor is not None and tensor() else x


def bfloat16(x: Floats) -> NDArray[np.uint16]:
    """The nearest bfloat16 of each number, ties to even, as its 16 bits (NumPy has no bfloat16). NaN stays NaN."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded: NDArray[np.uint16] = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(x), np.uint16(0x7FC0), rounded)


def columns(x: Array, parts: Sequence[slice]) -> Array:
    """The columns ``parts`` of ``x`` [n, width], concatenated on the device of ``x``."""
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


def copied(x: Array) -> Array:
    """A copy of ``x`` on its device."""
    return _like(x, [x], x.shape)


def joined(parts: Sequence[Array]) -> Array:
    """The rows of all parts, concatenated on their device; a single part is returned without a copy."""
    if len(parts) == 1:
        return parts[0]
    return _like(parts[0], parts, (sum(map(len, parts)), *parts[0].shape[1:]))


def padded(parts: Sequence[Array]) -> Array:
    """Parts of up to n rows stacked along a second axis, zero-padded: [n, len(parts), ...]."""
    first: Any = parts[0]
    shape = (max(map(len, parts)), len(parts), *first.shape[1:])
    out: Any = np.zeros(shape, first.dtype) if isinstance(first, np.ndarray) else first.new_zeros(shape)
    for i, part in enumerate(parts):
        out[: len(part), i] = part
    return out  # type: ignore[no-any-return]


def _like(first: Any, parts: Sequence[Array], shape: Sequence[int]) -> Array:
    """The rows of all parts in a new array of ``shape`` with the type, dtype and device of ``first``."""
    out: Any = np.empty(shape, first.dtype) if isinstance(first, np.ndarray) else first.new_empty(shape)
    at = 0
    for part in parts:
        out[at : at + len(part)] = part
        at += len(part)
    return out  # type: ignore[no-any-return]


def split_rows(x: Array, counts: Sequence[int]) -> list[Array]:
    """Consecutive views of ``counts[i]`` rows each."""
    ends = list(accumulate(counts))
    return [x[end - count : end] for end, count in zip(ends, counts, strict=True)]
