"""What a step takes: timed, learned, and held against what a draft brings."""

from __future__ import annotations

import itertools
import time
from types import SimpleNamespace

import pytest

from outrider.cache import KVCache
from outrider.config import SamplingParams
from outrider.engine.draft_length import calibration
from outrider.engine.draft_length.adaptive import AdaptiveLength
from outrider.engine.draft_length.calibration import CALIBRATION_S, calibrate
from outrider.engine.draft_length.cost import StepCost
from outrider.engine.draft_length.policy import ProposalCost
from outrider.engine.draft_length.row_counts import ROWS
from outrider.engine.draft_length.source_times import TypicalSeconds
from outrider.models.batch import ForwardBatch, ForwardOutput
from outrider.verify.draft import Draft
from tests import small_models
from tests.small_engines import request

FAST = StepCost([0.0010 + 0.00001 * n for n in ROWS], [0.0] * len(ROWS))  # a row more costs 1%


def learned(plain: float, asking: float, drafting: float, requests: int = 1, steps: int = 300) -> StepCost:
    cost = StepCost([0.01] * len(ROWS), [0.0] * len(ROWS))
    for _ in range(steps):
        cost.observe_outside(requests, 0, 0, plain)
        cost.observe_outside(requests, requests, 0, plain + requests * asking)
        cost.observe_outside(requests, requests, requests, plain + requests * (asking + drafting))
    return cost


@pytest.mark.parametrize("requests", [1, 16])
def test_steps_tell_what_asking_and_scoring_a_draft_add(requests: int) -> None:
    cost = learned(0.0002, 0.00005, 0.00015, requests)
    assert cost.outside(requests) == pytest.approx(0.0002)
    assert cost.asking == pytest.approx(0.00005, rel=0.01)
    assert cost.drafting == pytest.approx(0.00015, rel=0.01)
    assert cost.outside(7) == 3e-4  # of which nothing is known


def test_a_disturbed_step_counts_as_twice() -> None:
    cost = learned(0.0002, 0.00005, 0.0001)
    cost.observe_outside(1, 0, 0, 1.0)
    cost.observe_outside(1, 1, 0, 1.0)
    cost.observe_outside(1, 1, 1, 1.0)
    assert cost.outside(1) < 0.0003
    assert cost.asking < 0.0001
    assert cost.drafting < 0.0002


def test_passes_correct_what_was_timed_and_one_that_was_disturbed_does_not() -> None:
    cost = StepCost([0.010] * len(ROWS), [0.0] * len(ROWS))
    cost.observe_pass([1], [100], 1.0)
    assert cost.pass_seconds([1], [100]) < 0.011
    for _ in range(300):
        cost.observe_pass([8], [100], 0.015)
        cost.observe_pass([1], [100], 0.010)
    assert cost.pass_seconds([8], [100]) == pytest.approx(0.015, rel=0.1)
    assert cost.pass_seconds([1], [100]) == pytest.approx(0.010, rel=0.1)


def test_rows_behind_a_long_context_are_dearer() -> None:
    cost = StepCost([0.010] * len(ROWS), [1e-6 * n for n in ROWS])
    assert cost.row(1, 1, 64) == 0.0
    assert cost.row(1, 1, 4064) == pytest.approx(0.004)


def test_timings_that_were_disturbed_hardly_count() -> None:
    typical = TypicalSeconds(0.05)
    assert typical.seconds is None
    assert typical.observe(0.050) == 0.050
    assert typical.seconds is None  # it may have been disturbed
    typical.observe(0.001)
    assert typical.seconds == 0.001
    for _ in range(20):
        typical.observe(0.001)
    assert typical.observe(0.050) == 0.002
    assert typical.seconds == pytest.approx(0.00105)


@pytest.mark.parametrize("slow", [0, 1])
def test_a_pass_that_was_disturbed_does_not_make_all_longer_ones_dear(
    slow: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one reads weights from disk; another may find the machine busy."""
    model, passes = small_models.llama(), itertools.count()
    forward = model.forward

    def disturbed(batch: ForwardBatch, cache: KVCache) -> ForwardOutput:
        if next(passes) == slow:
            time.sleep(0.3)
        return forward(batch, cache)

    monkeypatch.setattr(model, "forward", disturbed)
    monkeypatch.setenv(CALIBRATION_S, "0")  # each size is timed once
    cost = calibrate(model)
    assert cost.pass_seconds([1], [64]) < 0.15
    assert cost.pass_seconds([32], [64]) < 0.15


@pytest.mark.parametrize(("seconds", "passes"), [("0", 1 + 6), ("0.3", 1 + 8), ("0.5", 1 + 8 + 6)])
def test_a_slow_model_is_timed_with_few_passes(seconds: str, passes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row takes 4 ms, and 10 µs more for each token of context."""
    model, asked, clock = small_models.llama(max_seq_len=1024), list[tuple[int, int]](), [0.0]

    def slow(batch: ForwardBatch, cache: KVCache) -> ForwardOutput:
        rows, context = len(batch.token_ids), int(batch.positions[0])
        asked.append((context, rows))
        clock[0] += rows * (0.004 + 1e-5 * context)
        return forward(batch, cache)

    forward = model.forward
    monkeypatch.setattr(model, "forward", slow)
    monkeypatch.setattr(calibration, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    monkeypatch.setenv(CALIBRATION_S, seconds)
    cost = calibrate(model)
    assert len(asked) == passes
    assert ((64, 32) in asked) == (seconds != "0")
    for rows in ROWS:
        assert cost.pass_seconds([rows], [64]) == pytest.approx(rows * 0.00464)
        assert cost.pass_seconds([rows], [1064]) == pytest.approx(rows * 0.01464)


def scored(outside: float) -> int:
    """Nodes that are scored of a draft which brings 0.4 tokens, where scoring any takes so many seconds of Python."""
    policy = AdaptiveLength(lambda: FAST)
    r = request([1, 2, 3], SamplingParams(max_tokens=999), draft="source", spec_length="auto")
    draft = Draft.chain([7], source="source", scores=[0.4])
    for step in range(200):
        policy.budget([r], [1])
        policy.observe_proposals(r, {"source": ProposalCost(1e-6, 1)})
        (kept,) = policy.select([r], [draft if step % 2 else Draft((), ())], [1], [1])
        policy.observe_forward_pass([r], [kept], 0.0010)
        accepted = step % 5 < 2  # of odd steps, two in five
        policy.observe(r, [7, 8] if accepted and kept else [7] if accepted else [8], kept, range(len(kept) * accepted))
        policy.observe_step(1, 0.0002 + (outside if kept else 0.0))
    return len(kept)


def test_a_draft_that_costs_more_python_than_it_saves_is_not_scored() -> None:
    assert scored(0.0001) == 1
    assert scored(0.0009) == 0
