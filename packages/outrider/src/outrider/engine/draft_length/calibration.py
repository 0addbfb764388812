"""Times the target's forward passes by the rows they score, on a cache of their own."""

from __future__ import annotations

import os
import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import partial

from outrider.cache import CacheSpec, extend_unread
from outrider.engine.draft_length.cost import SHORT, StepCost
from outrider.engine.draft_length.expert_union import ExpertUnion
from outrider.engine.draft_length.row_counts import ROWS
from outrider.engine.draft_length.settings import DEFAULT_SETTINGS, DraftLengthSettings
from outrider.engine.pass_times import PassTimes, measured_once
from outrider.models.base import Model
from outrider.models.batch import ForwardBatch, SequenceInput, pack
from outrider.models.config import ModelConfig
from outrider.models.native_llama import NativeLlamaModel
from outrider.verify.arrays import host

_CONTEXTS = SHORT, 512  # tokens behind which they are timed
_ALWAYS = (0, 1), (0, 8), (1, 1), (1, 8), (0, 4), (0, 16)  # places of contexts, and rows, in the order of their timing
_IF_TIME = (0, 2), (0, 32)
CALIBRATION_S = "OUTRIDER_CALIBRATION_S"
"""Environment: seconds for calibration instead of ``DraftLengthSettings.calibration_s``, also in child processes."""
_EXPERTS = 1
"""Behind a context and a number of rows, in place of the pass: the part of its seconds that its experts take."""
_ALIKE = 8  # rows of one token, which share their experts: what they take less tells the price of an expert
_SPREAD = 0.618034  # of the vocabulary, between the tokens of neighbouring rows
_REPEATS = 30  # timings of each after which calibration ends early


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
