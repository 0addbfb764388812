"""Counts that add up, and rates that follow from them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from outrider.config import SamplingParams
from outrider.engine.stats import RequestStats
from outrider.models.toy import TableModel
from outrider.verify.draft import EMPTY, Draft
from tests.small_engines import engine, request, run


def test_nothing_happened() -> None:
    stats = RequestStats()
    assert stats.draft_acceptance_rate is None
    assert stats.mean_acceptance_length is None
    assert stats.tokens_per_s is None
    assert stats.acceptance_by_position == []
    assert "draft_error" not in stats.as_dict()


def test_chains_and_trees_are_counted_by_depth() -> None:
    stats = RequestStats()
    stats.count(EMPTY, ())
    stats.count(Draft.chain([1, 2, 3]), (0, 1))
    stats.count(Draft.chain([1, 2]), (0, 1))
    stats.count(Draft((1, 2, 3, 4), (-1, -1, 0, 1)), (1,))
    stats.completion_tokens = 9
    assert (stats.target_runs, stats.num_drafts, stats.num_draft_tokens) == (4, 3, 9)
    assert stats.num_accepted_draft_tokens == 5
    assert stats.draft_acceptance_rate == 5 / 9
    assert stats.mean_acceptance_length == 9 / 4
    assert stats.acceptance_by_position == [1.0, pytest.approx(2 / 3), 0.0]
    assert (stats.by_rank.visited, stats.by_rank.accepted) == ([2, 1], [0, 1])  # of the tree alone


def test_as_dict_has_what_the_command_line_prints() -> None:
    stats = RequestStats(prompt_tokens=3, completion_tokens=10, target_runs=4, prefill_s=0.5, decode_s=1.5)
    stats.draft_error = "KeyError: x"
    assert stats.as_dict() == {
        "prompt_tokens": 3,
        "completion_tokens": 10,
        "target_runs": 4,
        "num_draft_tokens": 0,
        "num_accepted_draft_tokens": 0,
        "draft_acceptance_rate": None,
        "mean_acceptance_length": 2.5,
        "acceptance_by_position": [],
        "cached_prompt_tokens": 0,
        "prefill_s": 0.5,
        "decode_s": 1.5,
        "tokens_per_s": 5.0,
        "exact": True,
        "draft_error": "KeyError: x",
    }


@pytest.mark.parametrize("source", ["none", "ngram", "lookup", "model"])
def test_counts_add_up(source: str) -> None:
    served = engine(TableModel.random(6, seed=1), draft=TableModel.random(6, seed=1, scale=1.0))
    r = request([0, 1, 0, 1], SamplingParams(max_tokens=40, temperature=0.5, seed=1), draft=source)
    outputs = run(served, r)["r"]
    stats = r.stats
    accepted = [o for o in outputs if o.origin == "accepted"]
    assert stats.prompt_tokens == 4
    assert stats.completion_tokens == len(outputs) == 40
    assert stats.num_accepted_draft_tokens == len(accepted)
    assert stats.completion_tokens == stats.num_accepted_draft_tokens + stats.target_runs
    assert sum(stats.drafted_at.values()) == stats.num_draft_tokens  # chains
    assert sum(stats.accepted_at.values()) == stats.num_accepted_draft_tokens
    assert stats.prefill_s > 0
    assert stats.decode_s > 0
    assert (stats.draft_s > 0) == (source != "none")
    assert {o.source for o in outputs} <= {"none", source}
    if source == "model":
        assert stats.mean_acceptance_length is not None
        assert stats.mean_acceptance_length > 1.3


def test_admissions_are_no_part_of_what_a_step_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """They run encoders and build drafters, which the next step does not do again."""
    now = [100.0]
    monkeypatch.setattr("outrider.engine.engine_stats.time.perf_counter", lambda: now[0])
    made = engine(TableModel.random(8, seed=0))
    stats = made.stats

    def passes(seconds: float, then: Callable[[], object]) -> object:
        now[0] += seconds
        return then()

    def step(admitting: float) -> object:
        stats.begin(0, 0, 0, made.memory.free_kv_tokens)
        if admitting:
            passes(0.5, stats.admitting)
            passes(admitting, stats.admitted)
        passes(0.5, stats.drafting)
        passes(1.0, stats.drafted)
        passes(4.0, stats.scored)
        return passes(0.25, lambda: stats.end(1))

    assert step(30.0) == 2.25  # with the half second before admissions
    assert step(0.0) == 1.75
    assert stats.busy_s == 36.25 + 5.75
