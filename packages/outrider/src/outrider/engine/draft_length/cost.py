"""What a step costs: T(n), the target's forward pass by the rows it scores, and the time outside of it."""

from __future__ import annotations

import math
import os
import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import partial

from outrider.cache import CacheSpec, extend_unread
from outrider.engine.draft_length.expert_union import ExpertUnion
from outrider.engine.draft_length.row_counts import ROWS, between, nearest, segment
from outrider.engine.draft_length.settings import DEFAULT_SETTINGS, DraftLengthSettings
from outrider.engine.pass_times import PassTimes, measured_once
from outrider.models.base import Model
from outrider.models.batch import ForwardBatch, SequenceInput, pack
from outrider.models.config import ModelConfig
from outrider.models.experts import ExpertReads
from outrider.models.native_llama import NativeLlamaModel
from outrider.verify.arrays import host

_CONTEXTS = 64, 512  # tokens behind which they are timed
_ALWAYS = (0, 1), (0, 8), (1, 1), (1, 8), (0, 4), (0, 16)  # places of contexts, and rows, in the order of their timing
_IF_TIME = (0, 2), (0, 32)
CALIBRATION_S = "OUTRIDER_CALIBRATION_S"
"""Environment: seconds for calibration instead of ``DraftLengthSettings.calibration_s``, also in child processes."""
_EXPERTS = 1
"""Behind a context and a number of rows, in place of the pass: the part of its seconds that its experts take."""
_ALIKE = 8  # rows of one token, which share their experts: what they take less tells the price of an expert
_SPREAD = 0.618034  # of the vocabulary, between the tokens of neighbouring rows
_REPEATS = 30  # timings of each after which calibration ends early
_DISTURBED = 2.0  # times what was expected that a duration counts as at most


class StepCost:
    """Seconds of a step, from its rows and the contexts they look back on.

        T = short(total rows) + sum over requests of (context - 64) · slope(its rows)

    and, outside the pass, a time for every step and one for each request with a draft. Steps correct all of them.
    With experts, ``short`` goes by those that passes of so many rows are expected to read (``expert_union``).
    """

    def __init__(
        self,
        short: Sequence[float],
        slope: Sequence[float],
        settings: DraftLengthSettings = DEFAULT_SETTINGS,
        experts: ExpertUnion | None = None,
    ) -> None:
        """``short``: seconds of a pass of each of ``ROWS``; ``slope``: seconds more for a token of context."""
        self._timed, self._experts = list(short), experts
        self._short, self._slope, self._weight = list(short), list(slope), settings.weight
        self._ratio = [1.0] * len(ROWS)  # observed over timed
        self._outside: dict[int, float] = {}  # of a step without drafts, by its requests
        self.drafting = 1e-4
        """Seconds outside the pass that scoring a request's draft adds: to select, pack, verify and move its rows."""
        self.asking = 3e-5
        """Seconds that asking a request's sources adds, beside theirs: to decide, merge, select and learn."""

    def pass_seconds(self, rows: Sequence[int], contexts: Sequence[int]) -> float:
        """Of a pass in which request ``i`` has ``rows[i]`` rows behind ``contexts[i]`` tokens."""
        return self._rows(sum(rows)) + sum(map(self._beyond, rows, contexts))

    def row(self, total: int, own: int, context: int) -> float:
        """That one more row adds to a pass of ``total`` rows, if its request has ``own`` of them."""
        added = self._rows(total + 1) - self._rows(total) + self._beyond(own + 1, context) - self._beyond(own, context)
        return max(0.0, added)

    def cheapest_row(self, total: int) -> float:
        """The least that any row more adds to a pass of ``total`` rows or more, at short contexts.

        Between two of ``ROWS`` both times and ratios are on lines, so what a row adds is least at one of the ends.
        """
        first, _ = segment(total)
        least = math.inf
        for i in range(first, len(ROWS) - 1):
            rows = ROWS[i + 1] - ROWS[i]
            short, ratio = self._short[i + 1] - self._short[i], self._ratio[i + 1] - self._ratio[i]
            begin, bend = (short * self._ratio[i] + ratio * self._short[i]) / rows, short * ratio / rows**2
            least = min(least, begin + bend, begin + bend * (2 * rows - 1))
        return max(0.0, min(least, short * self._ratio[-1] / rows))  # beyond the last, times go on alone

    def outside(self, requests: int) -> float:
        """Of a step of so many requests without drafts, outside its pass."""
        return self._outside.get(requests, 3e-4)

    def plain(self, contexts: Sequence[int]) -> float:
        """Of a step without drafts."""
        count = len(contexts)
        beyond = sum(contexts) - count * _CONTEXTS[0]
        if beyond < 0 or min(contexts) < _CONTEXTS[0]:
            beyond = sum([context - _CONTEXTS[0] for context in contexts if context > _CONTEXTS[0]])
        return self._rows(count) + beyond * self._slope[0] * self._ratio[0] + self.outside(count)

    def observe_pass(self, rows: Sequence[int], contexts: Sequence[int], seconds: float, experts: int = 0) -> None:
        """Learn from a pass; one that took several times as long as expected was disturbed, and counts as twice.

        ``experts``: distinct ones that it read, summed over layers; 0: nobody counted them.
        """
        total, requests = sum(rows), len(rows)
        alone = (
            self.plain(contexts) - self.outside(requests) if total == requests else self.pass_seconds(rows, contexts)
        )
        expected = max(1e-9, alone + self._unexpected(total, experts))
        off = self._weight * math.log(min(_DISTURBED, max(1 / _DISTURBED, seconds / expected)))
        own, all_rows = nearest(total), math.exp(0.8 * off)
        self._ratio = [ratio * all_rows for ratio in self._ratio]  # a slower machine is slower for all
        self._ratio[own] *= math.exp(0.2 * off)  # a part is this number of rows' own
        if self._experts is not None and experts and total > 1:
            self._experts.observe_pass(total, experts)
            self._short = self._experts.correct(self._timed)

    def observe_text(self, reads: ExpertReads) -> None:
        """Learn from a prompt how many experts neighbours share."""
        if self._experts is not None:
            self._experts.observe_text(reads)
            self._short = self._experts.correct(self._timed)

    def _unexpected(self, total: int, experts: int) -> float:
        """Seconds that a pass takes because it read more experts than expected."""
        if self._experts is None or not experts:
            return 0.0
        more = experts - self._experts.expected(total)
        return more * self._experts.seconds * between(self._ratio, min(total, ROWS[-1]))

    def _rows(self, total: int) -> float:
        return between(self._short, total) * between(self._ratio, min(total, ROWS[-1]))

    def _beyond(self, rows: int, context: int) -> float:
        long = max(0, context - _CONTEXTS[0])
        return long * between(self._slope, rows) * between(self._ratio, min(rows, ROWS[-1]))

    def observe_outside(self, requests: int, asked: int, drafted: int, seconds: float) -> None:
        """Learn from what a step took outside its pass and proposals.

        ``asked``: its requests whose sources were; ``drafted``: those with a draft that was scored.
        """
        known, without = self._outside.get(requests), seconds - asked * self.asking
        if not drafted and (known is None or not asked):
            before = without if known is None else known
            self._outside[requests] = before + self._weight * (min(without, _DISTURBED * before) - before)
        elif known is not None and drafted:  # else what drafting added cannot be told
            self.drafting = self._moved(self.drafting, (without - known) / drafted)
        elif known is not None:
            self.asking = self._moved(self.asking, (seconds - known) / asked)

    def _moved(self, before: float, seconds: float) -> float:
        """An average after a further timing, which counts as twice at most."""
        return before + self._weight * (min(max(0.0, seconds), _DISTURBED * max(before, 1e-5)) - before)


class TypicalSeconds:
    """What a thing takes, from timings of which some were disturbed: by the collection of garbage, or the first call.

    The least of the first few; later an average, in which a timing counts as twice the average at most.
    """

    _FEW = 8

    def __init__(self, weight: float) -> None:
        self._weight, self._seen, self._seconds = weight, 0, 0.0

    @property
    def seconds(self) -> float | None:
        """None until two timings say so: one may have been disturbed."""
        return self._seconds if self._seen > 1 else None

    def observe(self, seconds: float) -> float:
        """A further timing; what it counts as."""
        counted = seconds if self._seen == 0 else min(seconds, _DISTURBED * max(self._seconds, 1e-6))
        if self._seen < self._FEW:
            self._seconds = seconds if self._seen == 0 else min(self._seconds, seconds)
        else:
            self._seconds += self._weight * (counted - self._seconds)
        self._seen += 1
        return counted


def calibrate(model: Model, settings: DraftLengthSettings = DEFAULT_SETTINGS) -> StepCost:
    """Time passes of several numbers of rows at a short and at a long context, taking turns, on a cache of their own.

    Numbers of rows that were not timed are on the line through their neighbours.
    """
    limit = max(0, model.config.max_seq_len - ROWS[-1])
    contexts = sorted({min(context, limit) for context in _CONTEXTS})
    measure = partial(_time_passes, model, contexts, float(os.environ.get(CALIBRATION_S, settings.calibration_s)))
    if CALIBRATION_S not in os.environ and isinstance(model, NativeLlamaModel):
        probes = (contexts[0], 1), (contexts[0], 8)
        more = () if model.config.experts is None else ((contexts[0], 1, _EXPERTS),)
        times = measured_once(model, probes, partial(_time_pass, model), measure, more)
    else:
        times = measure()
    timed = [n for n in ROWS if (contexts[0], n) in times]
    short = [times[contexts[0], n] for n in timed]
    for i in reversed(range(len(timed) - 1)):  # none takes longer than one of more rows
        short[i] = min(short[i], short[i + 1])
    for i in range(1, len(timed)):  # nor than several passes of fewer rows
        short[i] = min(short[i], short[i - 1] * timed[i] / timed[i - 1])
    slope = dict[int, float]()
    for n in timed:
        if len(contexts) > 1 and (contexts[1], n) in times:
            added = (times[contexts[1], n] - times[contexts[0], n]) / (contexts[1] - contexts[0])
            slope[n] = max(added, 0.0, *slope.values())
    slope = slope or {1: 0.0}
    base = dict(zip(timed, short, strict=True))
    experts = _union(model.config, {n: times.get((contexts[0], n, _EXPERTS), 0.0) for n in timed}, settings)
    return StepCost([_on_line(base, n) for n in ROWS], [_on_line(slope, n) for n in ROWS], settings, experts)


def _union(config: ModelConfig, seconds: Mapping[int, float], settings: DraftLengthSettings) -> ExpertUnion | None:
    """The experts of timed passes, from the seconds that reading them took; None if that was not told."""
    if config.experts is None or not seconds.get(1):
        return None
    each = seconds[1] / config.experts.of_a_row(config.num_layers)
    return ExpertUnion([_on_line(seconds, n) / each for n in ROWS], each, settings.weight)


def _on_line(points: Mapping[int, float], rows: int) -> float:
    """The value for ``rows`` on the line through the two nearest points, or the one point's."""
    known = sorted(points)
    if len(known) == 1:
        return points[known[0]]
    i = min(max(bisect_left(known, rows), 1), len(known) - 1)
    low, high = known[i - 1], known[i]
    return points[low] + (rows - low) / (high - low) * (points[high] - points[low])


def _time_passes(model: Model, contexts: Sequence[int], seconds: float) -> PassTimes:
    """Least seconds of a pass by context and rows; those of ``_IF_TIME`` are missing for slow models.

    With experts that are counted, also the seconds that they take.
    """
    longest = model.config.max_seq_len
    cache = model.new_cache(CacheSpec(slots=1, max_seq_len=min(longest, _CONTEXTS[1] + ROWS[-1])))
    slot = cache.allocate()
    cases: list[tuple[int, ...]] = [(contexts[place], n) for place, n in (*_ALWAYS, *_IF_TIME) if place < len(contexts)]
    always, alike = len(cases) - len(_IF_TIME), (contexts[0], _ALIKE, _EXPERTS)
    cache.extend(slot, 1)
    out = model.forward(_batch(model, slot, 0, 1), cache)  # the first pass reads weights from disk
    least = 1
    if out.experts is not None:
        cases.insert(0, alike)
        always, least = always + 1, 2  # each case's first pass reads its own experts from disk
    times: dict[tuple[int, ...], list[float]] = {case: [] for case in cases}
    read: dict[tuple[int, ...], int] = {}
    began = time.perf_counter()
    while time.perf_counter() - began < seconds or len(times[cases[0]]) < least:
        for place, case in enumerate(cases):
            if place >= always and time.perf_counter() - began >= seconds:
                break
            context, rows = case[0], min(case[1], longest)
            extend_unread(cache, slot, context, rows)
            batch = _batch(model, slot, context, rows, same=case == alike)
            start = time.perf_counter()
            out = model.forward(batch, cache)
            host(out.logits[-1:])  # which waits for a GPU to be done
            times[case].append(time.perf_counter() - start)
            read[case] = 0 if out.experts is None else out.experts.count
        if all(len(measured) >= _REPEATS for measured in times.values()):
            break
    found = {case: min(measured) for case, measured in times.items() if measured}
    return found if alike not in found else _with_experts(found, read, alike)


def _with_experts(
    times: Mapping[tuple[int, ...], float], read: Mapping[tuple[int, ...], int], alike: tuple[int, ...]
) -> PassTimes:
    """Times of passes, and the parts that their experts take: as much as tells rows that are ``alike`` from others.

    An expert takes no more than all the experts of a row may, which is the row's time. Where the others read hardly
    more, nothing is told.
    """
    context, rows, _ = alike
    passes = {case: taken for case, taken in times.items() if case != alike}
    more = read[context, rows] - read[alike]
    each = (times[context, rows] - times[alike]) / more if 2 * more > read[context, 1] else 0.0
    each = min(each, times[context, 1] / read[context, 1])
    if each <= 0:
        return passes
    return passes | {(*case, _EXPERTS): each * read[case] for case in passes if case[0] == context}


def _time_pass(model: Model, case: tuple[int, ...]) -> float:
    """Seconds of one pass."""
    context, rows = case
    cache = model.new_cache(CacheSpec(slots=1, max_seq_len=context + rows))
    slot = cache.allocate()
    extend_unread(cache, slot, context, rows)
    batch = _batch(model, slot, context, rows)
    start = time.perf_counter()
    model.forward(batch, cache)
    return time.perf_counter() - start


def _batch(model: Model, slot: int, context: int, rows: int, *, same: bool = False) -> ForwardBatch:
    """A chain of tokens from all over the vocabulary, as neighbours in it are alike; or of the ``same``."""
    vocab_size = model.config.vocab_size
    tokens = [0 if same else round(row * _SPREAD * vocab_size) % vocab_size for row in range(rows)]
    return pack([SequenceInput(slot, context, tokens, [context + row for row in range(rows)], range(rows), None)])
