"""What a step takes outside its forward pass: learned, and held against what a draft brings."""

from __future__ import annotations

import pytest

from outrider.config import SamplingParams
from outrider.engine.adaptive.controller import AdaptiveLength
from outrider.engine.adaptive.cost import ForwardPassCost
from outrider.engine.adaptive.overhead import StepOverhead
from outrider.engine.adaptive.settings import DEFAULT_SETTINGS
from outrider.engine.adaptive.statistics import ProposalCost
from outrider.verify.draft import Draft
from tests.small_engines import request

ROWS = DEFAULT_SETTINGS.measured_rows
FAST = ForwardPassCost([0.0010 + 0.00001 * n for n in ROWS], [0.0] * len(ROWS))  # a row more costs 1%


def learned(plain: float, drafting: float, requests: int = 1, steps: int = 100) -> StepOverhead:
    overhead = StepOverhead()
    for _ in range(steps):
        overhead.observe(requests, 0, plain)
        overhead.observe(requests, requests, plain + requests * drafting)
    return overhead


@pytest.mark.parametrize("requests", [1, 16])
def test_steps_with_and_without_drafts_tell_what_scoring_one_adds(requests: int) -> None:
    overhead = learned(0.0002, 0.00015, requests)
    assert overhead.plain(requests) == pytest.approx(0.0002)
    assert overhead.drafting == pytest.approx(0.00015, rel=0.01)
    assert overhead.plain(7) == DEFAULT_SETTINGS.step_overhead  # of which nothing is known


def test_a_disturbed_step_counts_as_twice() -> None:
    overhead = learned(0.0002, 0.0001)
    overhead.observe(1, 0, 1.0)
    overhead.observe(1, 1, 1.0)
    assert overhead.plain(1) < 0.0003
    assert overhead.drafting < 0.0002


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
        policy.observe_step(1, 0.0002 + (outside if kept else 0.0))
    return len(kept)


def test_a_draft_that_costs_more_python_than_it_saves_is_not_scored() -> None:
    assert scored(0.0001) == 1
    assert scored(0.0009) == 0
