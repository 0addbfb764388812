"""Measures a machine's costs with the serving engine: T(n), the fixed cost of a step, and a draft source."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import numpy as np

from outrider.config import SamplingParams, SpeculationParams
from outrider.engine.memory_plan import row_bytes
from outrider.llm import LLM
from outrider_lab.comparison import decode_rounds
from outrider_lab.cost import LatencyCurve
from outrider_lab.fleet_planning.costs.draft_model import MAX_K, SimulatedDraft
from outrider_lab.fleet_planning.costs.machine import Machine
from outrider_lab.measure import Expect, Tick, acceptance_by_position, measure_latency_curve, measure_settings

SHORT = 16  # tokens of context at which T(n) is measured
LONG = 1024  # tokens of context at which attention's cost is measured
FEW_ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
MANY_ROWS = (96, 128, 256)
MOST_ROWS = (512, 1024, 2048)
DECODED = 24  # tokens of each request when steps are timed
PIECES = 4
"""Calls of ``tick`` when no draft source is measured."""


def measure_machine(
    llm: LLM,
    *,
    draft: str | None = None,
    prompts: Sequence[list[int]] = (),
    params: SamplingParams | None = None,
    tick: Tick = lambda _: None,
    expect: Expect = lambda _: None,
) -> Machine:
    """The machine that ``llm`` runs on.

    Args:
        draft: a source, measured on ``prompts`` with ``params``, beside plain decoding.
    """
    expect(PIECES + (2 * (1 + len(prompts)) if draft else 0))
    limit = min(llm.config.max_batched_tokens, llm.engine.max_seq_len - SHORT)
    points = dict(measure_latency_curve(llm.model, context=SHORT, rows=_up_to(FEW_ROWS, limit), repeat=12).points)
    tick("cost of few rows")
    for sizes, repeat in ((MANY_ROWS, 3), (MOST_ROWS, 1)):
        if many := [n for n in sizes if n <= limit]:
            points |= measure_latency_curve(llm.model, context=SHORT, rows=many, repeat=repeat).points
    tick("cost of many rows")
    some = _up_to((128,), limit)
    silent = measure_latency_curve(llm.model, context=SHORT, rows=some, repeat=3, last_logits=True)
    per_silent_row = max(0.0, points[some[0]] - silent(some[0])) / some[0]
    target = LatencyCurve(dict(zip(points, np.maximum.accumulate(list(points.values())).tolist(), strict=True)))
    long = min(LONG, llm.engine.max_seq_len - 1)
    looking_back = measure_latency_curve(llm.model, context=long, rows=(1, 2), repeat=12)(1) - target(1)
    per_context_token = max(0.0, looking_back) / max(1, long - SHORT)
    tick("cost of looking back")
    overhead, per_sequence = _beside(llm, target, per_context_token)
    tick("cost of a step")
    return Machine(
        target=target,
        overhead=overhead,
        per_sequence=per_sequence,
        per_context_token=per_context_token,
        per_silent_row=per_silent_row,
        max_batch_size=llm.config.max_batch_size,
        max_batched_tokens=llm.config.max_batched_tokens,
        kv_tokens=llm.memory_plan.kv_tokens,
        kv_bytes_per_token=float(row_bytes(llm.model)),
        prefix_reuse=llm.config.prefix_reuse,
        draft=_draft(llm, draft, prompts, params or SamplingParams(max_tokens=64), tick) if draft else None,
        name=llm.config.model,
    )


def _up_to(rows: Sequence[int], limit: int) -> list[int]:
    return [n for n in rows if n <= limit] or [1]


def _beside(llm: LLM, target: LatencyCurve, per_context_token: float) -> tuple[float, float]:
    """Seconds of a step, and of each of its requests, that T(n) does not explain; neither is below zero."""
    batches = sorted({1, 2, max(1, llm.config.max_batch_size // 2), llm.config.max_batch_size})
    rest = [_decode(llm, n) - target(n) - n * per_context_token * (SHORT + DECODED / 2) for n in batches]
    if len(batches) == 1:
        return max(0.0, rest[0]), 0.0
    slope, start = np.polyfit(batches, rest, 1)
    per_sequence = max(0.0, float(slope))
    overhead = float(start) if slope > 0 else float(np.mean(rest))
    return max(0.0, overhead), per_sequence


def _decode(llm: LLM, batch: int) -> float:
    """Median seconds of a step with ``batch`` decoding requests."""
    engine, params = llm.engine, SamplingParams(max_tokens=DECODED, ignore_eos=True)
    plain = SpeculationParams(draft="none")
    requests = [llm.request([1 + i] * SHORT, params, plain) for i in range(batch)]
    for request in requests:
        request.cache_salt = f"measured {time.perf_counter()}"
        engine.add(request)
    seconds: list[float] = []
    while engine.busy:
        decoding = all(request.num_pending_tokens == 1 for request in requests)
        began = time.perf_counter()
        engine.step()
        if decoding:
            seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def _draft(llm: LLM, name: str, prompts: Sequence[list[int]], params: SamplingParams, tick: Tick) -> SimulatedDraft:
    """Measure a source's cost and acceptance."""
    settings = {
        "none": SpeculationParams(draft="none"),
        name: SpeculationParams(draft=name, spec_length=MAX_K),
    }
    observed = measure_settings(llm, prompts, params, settings, tick=tick)[name]
    rounds = decode_rounds(observed)
    share = sum(drafted > 0 for drafted, _ in rounds) / max(1, len(rounds))
    each = max(1e-9, observed.draft_s_per_token)  # requests draft one by one
    return SimulatedDraft(
        name, tuple(acceptance_by_position(rounds, MAX_K)), share, LatencyCurve({1: each, 2: 2 * each, 3: 3 * each})
    )
