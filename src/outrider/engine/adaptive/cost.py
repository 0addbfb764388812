"""What a run of the target costs by the number of rows it scores: T(n), measured here instead of assumed."""

from __future__ import annotations

import statistics
import time
from bisect import bisect_left
from collections.abc import Sequence

import torch

from outrider.cache.protocol import CacheSpec
from outrider.core.tree import ancestor_mask, depths
from outrider.kernels.batch import ForwardBatch, Span
from outrider.models.base import Model

ROWS = (1, 2, 4, 8, 16, 32)  # measured; between them T is taken to be linear, beyond them as at the end
_SHORT, _LONG = 64, 512  # tokens of context
_SECONDS = 1.0  # to spend on measuring, at most, once every number of rows has been timed
_BRANCHES = 3  # of the tree that is timed beside a chain of as many rows
_TRUST = 0.05  # weight of one observed run against those before


class CostCurve:
    """Seconds of a run, from its rows and the contexts they look back on.

    T is the time for so many rows at a short context, and for each request what its rows add at a longer one:

        T = short(total rows) + Σ over requests (context - 64) · slope(its rows) + branch(context) · its branches

    A branch is a leaf of a request's tree beyond the first: attention reads the whole context once for each.
    Every observed run corrects the curve near its number of rows.
    """

    def __init__(self, short: Sequence[float], slope: Sequence[float], branch: tuple[float, float] = (0, 0)) -> None:
        """``short``: seconds of a run of each number of ``ROWS``; ``slope``: seconds more for a token of context.

        ``branch``: seconds of a branch at a short context, and what a token of context adds to them.
        """
        self._short, self._slope, self._branch = list(short), list(slope), branch
        self._correction = [1.0] * len(ROWS)

    def branch(self, context: int) -> float:
        """Seconds that another branch adds to a run, whatever rows it has."""
        return self._branch[0] + max(0, context - _SHORT) * self._branch[1]

    def seconds(self, rows: Sequence[int], contexts: Sequence[int]) -> float:
        """Of a run without branches in which request ``i`` has ``rows[i]`` rows behind ``contexts[i]`` tokens."""
        total = sum(rows)
        return self._predict(rows, contexts, total) * _between(self._correction, total, beyond=False)

    def observe(self, rows: Sequence[int], contexts: Sequence[int], branches: Sequence[int], seconds: float) -> None:
        """Learn from a run; one that took several times as long as expected was disturbed, and counts as twice."""
        total = sum(rows)
        seconds -= sum(n * self.branch(context) for n, context in zip(branches, contexts, strict=True))
        ratio = min(2.0, max(0.5, seconds / max(self._predict(rows, contexts, total), 1e-9)))
        nearest = min(range(len(ROWS)), key=lambda i: abs(ROWS[i] - total))
        old = self._correction[nearest]
        drift = _TRUST * (ratio - old)
        for i in range(len(ROWS)):  # a slower machine is slower for all; the rest is this number of rows' own
            self._correction[i] += drift if i == nearest else 0.8 * drift

    def _predict(self, rows: Sequence[int], contexts: Sequence[int], total: int) -> float:
        extra = sum(
            max(0, context - _SHORT) * _between(self._slope, n) for n, context in zip(rows, contexts, strict=True)
        )
        return _between(self._short, total) + extra


def _between(values: Sequence[float], rows: int, beyond: bool = True) -> float:
    """The value for a number of rows, by linear interpolation between those of ``ROWS``."""
    i = min(max(bisect_left(ROWS, rows), 1), len(ROWS) - 1)
    low, high = ROWS[i - 1], ROWS[i]
    share = (rows - low) / (high - low)
    if not beyond:
        share = min(share, 1.0)
    return values[i - 1] + share * (values[i] - values[i - 1])


@torch.inference_mode()
def calibrate(model: Model, *, seconds: float = _SECONDS) -> CostCurve:
    """Time runs of each number of rows at a short and at a long context, taking turns, on a cache of their own."""
    limit = model.config.max_seq_len - ROWS[-1]
    contexts = sorted({max(0, min(_SHORT, limit)), max(0, min(_LONG, limit))})
    cache = model.new_cache(CacheSpec(slots=1, max_seq_len=min(model.config.max_seq_len, _LONG + ROWS[-1])))
    slot = cache.allocate()
    shapes = [*((n, 0) for n in ROWS), (8, _BRANCHES)]  # rows and branches
    times: dict[tuple[int, int, int], list[float]] = {(c, *shape): [] for c in contexts for shape in shapes}
    began = time.perf_counter()
    while time.perf_counter() - began < seconds or not all(times.values()):
        for (context, rows, branches), measured in times.items():
            rows = min(rows, model.config.max_seq_len)
            cache.truncate_to(slot, 0)
            cache.extend(slot, context + rows)
            batch = _batch(model.config.vocab_size, slot, context, rows, min(branches, rows - 1))
            start = time.perf_counter()
            model.forward(batch, cache).logits.sum().item()  # waits for a device that works on its own
            measured.append(time.perf_counter() - start)
        if all(len(measured) >= 30 for measured in times.values()):
            break
    middle = {key: statistics.median(measured[len(measured) > 1 :]) for key, measured in times.items()}
    short = _rising([middle[contexts[0], n, 0] for n in ROWS])
    branch = [max(0.0, middle[c, 8, _BRANCHES] - middle[c, 8, 0]) / _BRANCHES for c in contexts]
    if len(contexts) == 1:
        return CostCurve(short, [0.0] * len(ROWS), (branch[0], 0.0))
    span = contexts[1] - contexts[0]
    slope = _rising([(middle[contexts[1], n, 0] - middle[contexts[0], n, 0]) / span for n in ROWS])
    return CostCurve(short, slope, (branch[0], max(0.0, branch[1] - branch[0]) / span))


def _batch(vocab_size: int, slot: int, context: int, rows: int, branches: int) -> ForwardBatch:
    """A chain, the last ``branches`` of its rows being children of its first instead."""
    parents = [i - 1 if i < rows - branches else 0 for i in range(rows)]
    positions = torch.tensor(depths(parents)) + context
    span = Span(slot, context, rows, ancestor_mask(parents) if branches > 0 else None)
    return ForwardBatch(torch.arange(rows) % vocab_size, positions, (span,), None)


def _rising(values: Sequence[float]) -> list[float]:
    """The same, with what noise made smaller than a value before it raised to that; none below zero."""
    out: list[float] = []
    for value in values:
        out.append(max(value, out[-1] if out else 0.0))
    return out
