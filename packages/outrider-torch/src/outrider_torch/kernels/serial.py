"""Element-wise operations whose bits do not depend on torch's threads or vectors."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

_SERIAL = 32768  # elements that torch runs on one thread (at::internal::GRAIN_SIZE)
_VECTORS = 32  # the most float32 numbers that torch's loops process at once: two registers of AVX-512


def serial_rows(width: int) -> int:
    """The most rows of ``width`` elements that torch does not divide among threads, at least 1.

    torch divides more than ``_SERIAL`` elements evenly, regardless of row ends, and computes the elements after a
    share's last whole vector with scalar code. Exponentials and complex products differ between the two in float32's
    last bit, so a row would depend on the other rows. Sums, products and roundings do not.
    """
    return max(1, _SERIAL // width)


def elementwise(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """``function`` of each element of x: [T, width]; a row's bits do not depend on other rows.

    On a CPU in parts that one thread computes, without a rest for scalar code: rows that are no whole vectors are
    padded together.
    """
    if x.is_cuda:
        return function(x)
    parts = [_in_vectors(function, part) for part in torch.split(x, serial_rows(x.shape[1]))]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _in_vectors(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    flat = x.reshape(-1)  # contiguous, as torch has other loops for strided tensors
    rest = -len(flat) % _VECTORS
    return function(flat).view(x.shape) if not rest else function(F.pad(flat, (0, rest)))[:-rest].view(x.shape)
