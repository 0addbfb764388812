"""What a forward pass of the target costs by the number of rows it scores: T(n), measured instead of assumed."""

from __future__ import annotations

import statistics
import time
from bisect import bisect_left
from collections.abc import Sequence
from functools import partial

from outrider.cache.protocol import CacheSpec
from outrider.engine.adaptive.settings import DEFAULT_SETTINGS, AdaptiveSettings
from outrider.engine.pass_times import measured_once
from outrider.models.base import Model
from outrider.models.batch import ForwardBatch, SequenceInput, pack
from outrider.models.native_llama import NativeLlamaModel
from outrider.verify.arrays import host
from outrider.verify.tree import ancestor_mask, depths


class ForwardPassCost:
    """Seconds of a forward pass, from its rows and the contexts they look back on.

    T is the time for so many rows at a short context, and for each request what its rows add at a longer one:

        T = short(total rows) + Σ over requests (context - 64) · slope(its rows) + branch(context) · its branches

    A branch is a leaf of a request's tree beyond the first: attention reads the whole context once for each.
    ``short`` and ``slope`` are known at ``settings.measured_rows``, linear between them, and beyond them as at the end.
    Every observed pass corrects T near its number of rows.
    """

    def __init__(
        self,
        short: Sequence[float],
        slope: Sequence[float],
        branch: tuple[float, float] = (0, 0),
        settings: AdaptiveSettings = DEFAULT_SETTINGS,
    ) -> None:
        """``short``: seconds of a pass of each of ``measured_rows``; ``slope``: seconds more for a token of context.

        ``branch``: seconds of a branch at a short context, and what a token of context adds to them.
        """
        self.settings = settings
        self._short, self._slope, self._branch = list(short), list(slope), branch
        self._correction = [1.0] * len(settings.measured_rows)
        self._places: dict[int, tuple[int, float]] = {}  # of numbers of rows among the measured ones

    def branch(self, context: int) -> float:
        """Seconds that another branch adds to a pass, whatever rows it has."""
        return self._branch[0] + max(0, context - self.settings.short_context) * self._branch[1]

    def seconds(self, rows: Sequence[int], contexts: Sequence[int]) -> float:
        """Of a pass without branches in which request ``i`` has ``rows[i]`` rows behind ``contexts[i]`` tokens."""
        total = sum(rows)
        return self._predict(rows, contexts, total) * self.correction(total)

    def at_short_context(self, rows: int) -> float:
        """Seconds of a pass of so many rows in all; ``beyond`` is what longer contexts add."""
        return self._between(self._short, rows)

    def beyond(self, rows: int, context: int) -> float:
        """Seconds that a request with so many rows adds, as its context is no short one."""
        return max(0, context - self.settings.short_context) * self._between(self._slope, rows)

    def correction(self, rows: int) -> float:
        """What the time of a pass of so many rows in all is to be multiplied by, as observed."""
        return self._between(self._correction, rows, beyond=False)

    def observe(self, rows: Sequence[int], contexts: Sequence[int], branches: Sequence[int], seconds: float) -> None:
        """Learn from a pass; one that took several times as long as expected was disturbed, and counts as twice."""
        settings, total = self.settings, sum(rows)
        seconds -= sum(n * self.branch(context) for n, context in zip(branches, contexts, strict=True))
        expected = max(self._predict(rows, contexts, total), 1e-9)
        ratio = min(settings.max_slowdown, max(1 / settings.max_slowdown, seconds / expected))
        nearest = min(range(len(self._short)), key=lambda i: abs(settings.measured_rows[i] - total))
        drift = settings.observation_weight * (ratio - self._correction[nearest])
        for i in range(len(self._short)):  # a slower machine is slower for all; the rest is this number of rows' own
            self._correction[i] += drift if i == nearest else settings.shared_drift * drift

    def _predict(self, rows: Sequence[int], contexts: Sequence[int], total: int) -> float:
        return self.at_short_context(total) + sum(map(self.beyond, rows, contexts))

    def _between(self, values: Sequence[float], rows: int, beyond: bool = True) -> float:
        """The value for a number of rows, by linear interpolation between those of the measured ones."""
        place = self._places.get(rows)
        if place is None:
            measured = self.settings.measured_rows
            i = min(max(bisect_left(measured, rows), 1), len(measured) - 1)
            low, high = measured[i - 1], measured[i]
            place = self._places[rows] = i, (rows - low) / (high - low)
        i, share = place
        if share > 1.0 and not beyond:
            share = 1.0
        return values[i - 1] + share * (values[i] - values[i - 1])


def calibrate(model: Model, settings: AdaptiveSettings = DEFAULT_SETTINGS) -> ForwardPassCost:
    """Time passes of each number of rows at a short and at a long context, taking turns, on a cache of their own."""
    sizes = settings.measured_rows
    limit = model.config.max_seq_len - sizes[-1]
    contexts = sorted({max(0, min(context, limit)) for context in (settings.short_context, settings.long_context)})
    if settings is DEFAULT_SETTINGS and isinstance(model, NativeLlamaModel):
        probes = tuple((contexts[0], n, 0) for n in (1, settings.branched_rows))
        middle = measured_once(
            model, probes, partial(_time_pass, model), lambda: _time_passes(model, contexts, settings)
        )
    else:
        middle = _time_passes(model, contexts, settings)
    rows, branches = settings.branched_rows, settings.branches
    short = _undisturbed([middle[contexts[0], n, 0] for n in sizes])
    branch = [max(0.0, middle[c, rows, branches] - middle[c, rows, 0]) / branches for c in contexts]
    if len(contexts) == 1:
        return ForwardPassCost(short, [0.0] * len(sizes), (branch[0], 0.0), settings)
    span = contexts[1] - contexts[0]
    slope = _rising([(middle[contexts[1], n, 0] - middle[contexts[0], n, 0]) / span for n in sizes])
    return ForwardPassCost(short, slope, (branch[0], max(0.0, branch[1] - branch[0]) / span), settings)


def _time_passes(model: Model, contexts: Sequence[int], settings: AdaptiveSettings) -> dict[tuple[int, ...], float]:
    """Median seconds of a pass by context, rows and branches."""
    longest = model.config.max_seq_len
    cache = model.new_cache(
        CacheSpec(slots=1, max_seq_len=min(longest, settings.long_context + settings.measured_rows[-1]))
    )
    slot = cache.allocate()
    shapes = [
        *((n, 0) for n in settings.measured_rows),
        (settings.branched_rows, 0),
        (settings.branched_rows, settings.branches),
    ]
    times: dict[tuple[int, ...], list[float]] = {(c, *shape): [] for c in contexts for shape in shapes}
    cache.extend(slot, 1)
    model.forward(_batch(model.config.vocab_size, slot, 0, 1, 0), cache)  # the first pass reads weights from disk
    began = time.perf_counter()
    while time.perf_counter() - began < settings.calibration_seconds or not all(times.values()):
        for (context, rows, branches), measured in times.items():
            rows = min(rows, longest)
            cache.truncate_to(slot, 0)
            cache.extend(slot, context + rows)
            batch = _batch(model.config.vocab_size, slot, context, rows, min(branches, rows - 1))
            start = time.perf_counter()
            logits = model.forward(batch, cache).logits
            host(logits[-1:])  # which waits for a GPU to be done
            measured.append(time.perf_counter() - start)
        if all(len(measured) >= settings.calibration_repeats for measured in times.values()):
            break
    return {key: statistics.median(measured[len(measured) > 1 :]) for key, measured in times.items()}


def _time_pass(model: Model, case: tuple[int, ...]) -> float:
    """Seconds of one pass without branches, behind a first that reads the weights."""
    context, rows, _ = case
    cache = model.new_cache(CacheSpec(slots=1, max_seq_len=context + rows))
    slot = cache.allocate()
    cache.extend(slot, context + rows)
    batch = _batch(model.config.vocab_size, slot, context, rows, 0)
    start = time.perf_counter()
    model.forward(batch, cache)
    return time.perf_counter() - start


def _batch(vocab_size: int, slot: int, context: int, rows: int, branches: int) -> ForwardBatch:
    """A chain, the last ``branches`` of its rows being children of its first instead."""
    parents = [i - 1 if i < rows - branches else 0 for i in range(rows)]
    positions = [context + depth for depth in depths(parents)]
    mask = ancestor_mask(parents) if branches > 0 else None
    tokens = [row % vocab_size for row in range(rows)]
    return pack([SequenceInput(slot, context, tokens, positions, range(rows), mask)])


def _undisturbed(seconds: Sequence[float]) -> list[float]:
    """The same, none longer than those of more rows: what disturbs a pass makes it longer, never shorter."""
    out: list[float] = []
    for value in reversed(seconds):
        out.append(min(value, out[-1] if out else value))
    return out[::-1]


def _rising(values: Sequence[float]) -> list[float]:
    """The same, with what noise made smaller than a value before it raised to that; none below zero."""
    out: list[float] = []
    for value in values:
        out.append(max(value, out[-1] if out else 0.0))
    return out
