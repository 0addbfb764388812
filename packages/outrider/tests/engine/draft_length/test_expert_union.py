"""With experts, a pass costs by those that its rows are expected to read."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from outrider.cache import KVCache
from outrider.engine.draft_length import calibration
from outrider.engine.draft_length.adaptive import AdaptiveLength
from outrider.engine.draft_length.calibration import CALIBRATION_S, calibrate
from outrider.engine.draft_length.cost import StepCost
from outrider.engine.draft_length.expert_union import ExpertUnion
from outrider.engine.draft_length.policy import ProposalCost
from outrider.engine.draft_length.row_counts import ROWS
from outrider.engine.draft_length.settings import DEFAULT_SETTINGS
from outrider.models.batch import ForwardBatch, ForwardOutput
from outrider.models.config import Experts
from outrider.models.experts import ExpertReads
from outrider.verify.draft import Draft
from tests import small_models
from tests.engine.draft_length.simulation import asked

LAYERS, COUNT, USED = 24, 64, 8
EACH = 0.0001  # seconds of an expert
DRAWN = [LAYERS * COUNT * (1 - (1 - USED / COUNT) ** n) for n in ROWS]
SHARED = [DRAWN[0] * (1 + 0.2 * (n - 1)) for n in ROWS]


def seconds(rows: int, union: float) -> float:
    return 0.002 + 0.0005 * rows + EACH * union


def known() -> StepCost:
    """Timed with rows that share by chance alone."""
    timed = [seconds(n, union) for n, union in zip(ROWS, DRAWN, strict=True)]
    return StepCost(timed, [0.0] * len(ROWS), experts=ExpertUnion(DRAWN, EACH, DEFAULT_SETTINGS.weight))


def text(union: list[float]) -> ExpertReads:
    return ExpertReads(round(union[-1]), dict(zip(ROWS, union, strict=True)))


def test_a_prompt_tells_the_price_of_rows_that_share_experts() -> None:
    cost = known()
    for n, union in zip(ROWS, DRAWN, strict=True):
        assert cost.pass_seconds([n], [0]) == pytest.approx(seconds(n, union))
    cost.observe_text(text(SHARED))
    assert seconds(2, SHARED[1]) < cost.pass_seconds([2], [0]) < seconds(2, DRAWN[1])  # one does not tell all
    for _ in range(200):
        cost.observe_text(text(SHARED))
    for n, union in zip(ROWS, SHARED, strict=True):
        assert cost.pass_seconds([n], [0]) == pytest.approx(seconds(n, union), rel=0.001)


def test_a_prompt_of_a_few_tokens_tells_nothing() -> None:
    cost = known()
    cost.observe_text(ExpertReads(300, {1: SHARED[0], 2: SHARED[1]}))
    assert cost.pass_seconds([2], [0]) == pytest.approx(seconds(2, DRAWN[1]))


def test_passes_follow_a_text_that_changes_and_the_machine_is_not_blamed_for_it() -> None:
    cost = known()
    for union in (SHARED, DRAWN, SHARED):
        for _ in range(200):
            for i in (1, 2):
                cost.observe_pass([ROWS[i]], [0], seconds(ROWS[i], union[i]), round(union[i]))
                assert cost.pass_seconds([1], [0]) == pytest.approx(seconds(1, DRAWN[0]), rel=0.005)
        for i in (1, 2):
            assert cost.pass_seconds([ROWS[i]], [0]) == pytest.approx(seconds(ROWS[i], union[i]), rel=0.01)
    for _ in range(300):  # a machine that is slower is so with these experts too
        cost.observe_pass([2], [0], 1.5 * seconds(2, SHARED[1]), round(SHARED[1]))
    assert cost.pass_seconds([2], [0]) == pytest.approx(1.5 * seconds(2, SHARED[1]), rel=0.05)


def test_no_pass_of_more_rows_is_expected_to_take_less() -> None:
    union = ExpertUnion(DRAWN, EACH, 0.05)
    for _ in range(20):
        union.observe_pass(8, round(DRAWN[0]))
    times = union.correct([seconds(n, drawn) for n, drawn in zip(ROWS, DRAWN, strict=True)])
    assert times == sorted(times)


def drafted(prompt: list[float] | None) -> int:
    """Nodes that the first step of a process scores, of a draft whose nodes are as likely as not."""
    policy, r = AdaptiveLength(known, replace(DEFAULT_SETTINGS, credit=40.0, first=40.0)), asked()
    if prompt is not None:
        policy.observe_prompt(text(prompt))  # which comes before the costs are known
    policy.budget([r], [8])
    draft = Draft.chain([7] * 8, source="source", scores=[0.7] * 8)
    policy.observe_proposals(r, {"source": ProposalCost(1e-5, 8)})
    (kept,) = policy.select([r], [draft], [1], [8])
    return len(kept)


def test_more_is_drafted_where_neighbours_share_experts() -> None:
    assert drafted(None) == drafted(DRAWN) < drafted(SHARED)


@pytest.mark.parametrize("each", [EACH, 0.0])
def test_calibration_tells_the_price_of_an_expert(each: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """By rows of one token, which share their experts: T = 2 ms + 0.5 ms a row + 0.1 ms an expert, or nothing."""
    experts = Experts(count=COUNT, used=USED, size=16, normalised=True)
    c = small_models.config(experts=experts, num_layers=LAYERS, intermediate_size=16, max_seq_len=1024)
    clock, seen = [0.0], set[int]()

    def forward(batch: ForwardBatch, cache: KVCache) -> ForwardOutput:
        count = round(DRAWN[0] + 100 * (len(set(batch.token_ids)) - 1))
        clock[0] += 0.002 + 0.0005 * len(batch.token_ids) + each * count
        clock[0] += 0.5 * len({*batch.token_ids} - seen)  # whose experts are read from disk
        seen.update(batch.token_ids)
        return ForwardOutput(rows, rows, experts=ExpertReads(count, {}))

    model = small_models.llama(num_layers=1, max_seq_len=1024)
    rows = np.ones((1, 64), np.float32)
    monkeypatch.setattr(model, "config", c)
    monkeypatch.setattr(model, "forward", forward)
    monkeypatch.setattr(calibration, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    monkeypatch.setenv(CALIBRATION_S, "0")
    cost = calibrate(model)
    for n in (1, 4, 8, 16, 32):
        count = DRAWN[0] + 100 * (n - 1)
        assert cost.pass_seconds([n], [64]) == pytest.approx(0.002 + 0.0005 * n + each * count)
    for _ in range(400):
        cost.observe_text(text([DRAWN[0]] * len(ROWS)))
    for n in (1, 4, 8, 16, 32):
        count = DRAWN[0] + (0 if each else 100 * (n - 1))
        assert cost.pass_seconds([n], [64]) == pytest.approx(0.002 + 0.0005 * n + each * count, rel=0.001)
