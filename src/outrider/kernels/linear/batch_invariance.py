"""How many rows a linear layer may be given at once, so that a row's result never depends on their number.

A library picks its kernel by the shape of the product. Where another kernel adds up in another order, a row has
other last bits in a call of 33 rows than in a call of 5: on processors with AMX, oneDNN's bf16 kernels change order
between 32 rows and 33, and back again at some larger sizes; on others they do not, but one row may differ from two. So
each machine is asked, once a shape.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

LONGEST = 512  # rows of a call, where all sizes agree
_ANCHOR = 16  # the number of rows that all others are held against
_SIZES = (1, 2, 3, 4, 5, 7, 8, 11, 12, 15, 17, 24, 31, 32, 33, 48, 63, 64, 65, 128, 200, 256, 384, 512)
_LARGER = (256, 320, 512, 640, 768, 1024)  # to pad prompts to: half the time of many small calls
_OUTPUTS = 2048  # of a probed layer at most, as a head of 150,000 would take seconds
_WEIGHTS = 25_000_000  # of a layer probed whole, which larger sizes need: kernels are chosen by the outputs, too


class InvariantRange(NamedTuple):
    """Numbers of rows between which a row's result is always the same."""

    least: int
    most: int
    larger: tuple[int, ...] = ()
    """Further numbers of rows, ascending, each of which gives that result too."""


LinearFunction = Callable[[Tensor], Tensor]


def invariant_range(make: Callable[[Tensor], LinearFunction], weight: Tensor) -> InvariantRange:
    """The widest range around 16 rows in which layers that ``make`` builds from such a weight are consistent.

    Args:
        make: from a weight [out, in] to a function of inputs [n, in].
        weight: any of the shape and dtype in question; its values do not matter.
    """
    return _probed(make, *weight.shape, weight.dtype, torch.get_num_threads())


@cache
def _probed(
    make: Callable[[Tensor], LinearFunction], out_features: int, in_features: int, dtype: torch.dtype, threads: int
) -> InvariantRange:
    whole = out_features * in_features <= _WEIGHTS
    outputs, longest = (out_features, max(_LARGER)) if whole else (min(out_features, _OUTPUTS), LONGEST)
    generator = torch.Generator().manual_seed(in_features)
    weight, x = _cancelling(outputs, longest, in_features, generator)
    run, x = make(weight.to(dtype)), x.to(dtype)
    anchor = torch.cat([run(part) for part in x[:LONGEST].split(_ANCHOR)])

    def agrees(rows: int) -> bool:
        return torch.equal(run(x[:rows]), anchor[:rows])

    least = most = _ANCHOR
    for rows in reversed([n for n in _SIZES if n < _ANCHOR]):
        if not agrees(rows):
            break
        least = rows
    for rows in [n for n in _SIZES if n > _ANCHOR]:
        if not agrees(rows):
            break
        most = rows
    if most == LONGEST or not whole:
        return InvariantRange(least, most)
    anchor = torch.cat([run(part) for part in x.split(most)])
    return InvariantRange(least, most, tuple(n for n in _LARGER if n > most and agrees(n)))


def _cancelling(outputs: int, rows: int, width: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """A weight [outputs, width] and inputs [rows, width] whose products cancel in pairs.

    What is left of every sum is rounding error, another one as soon as the order of additions is another.
    """
    order = torch.randperm(width, generator=generator)
    half = -(-width // 2)
    w = torch.randn(outputs, half, generator=generator)
    x = torch.randn(rows, half, generator=generator)
    weight = torch.stack([w, -w], dim=2).flatten(1)[:, :width]
    inputs = torch.stack([x, x], dim=2).flatten(1)[:, :width]
    return weight[:, order].contiguous(), inputs[:, order].contiguous()


def run_in_range(run: LinearFunction, x: Tensor, rows: InvariantRange) -> Tensor:
    """``run(x)`` in calls of as many rows as ``rows`` allows: [n, in] -> [n, out]."""
    n = x.shape[0]
    if n <= rows.most:
        return _padded(run, x, min(max(few_sizes(n), rows.least), rows.most))
    if size := next((size for size in rows.larger if n <= size <= 2 * n), None):
        return _padded(run, x, size)
    most = max((size for size in rows.larger if size < n), default=rows.most)
    return torch.cat([run_in_range(run, part, rows) for part in x.split(most)])


def few_sizes(n: int) -> int:
    """``n`` rounded up to one of eight sizes an octave: 15, 16, 18, 20, ... 30, 32, 36, ...

    oneDNN compiles a kernel for every layer's shape and number of rows and keeps it: hundreds of megabytes after some
    hundred different prompts. An eighth more rows at most is cheaper.
    """
    step = 1 << max(0, n.bit_length() - 4)
    return -(-n // step) * step


def _padded(run: LinearFunction, x: Tensor, rows: int) -> Tensor:
    n = x.shape[0]
    return run(x) if n == rows else run(F.pad(x, (0, 0, 0, rows - n)))[:n]
