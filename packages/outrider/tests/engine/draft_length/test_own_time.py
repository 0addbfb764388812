"""Whole requests: whatever is drafted, and beside whom, no request takes much longer than without drafts."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from outrider.config import SamplingParams
from outrider.engine.draft_length.adaptive import AdaptiveLength
from outrider.engine.draft_length.cost import StepCost
from outrider.engine.draft_length.policy import ProposalCost
from outrider.engine.draft_length.row_counts import ROWS
from outrider.engine.draft_length.settings import DEFAULT_SETTINGS
from outrider.engine.request import Request
from outrider.verify.draft import EMPTY, Draft
from tests.small_engines import request

COSTS = {
    "flat": StepCost([0.02] * len(ROWS), [0.0] * len(ROWS)),
    "SmolLM2, VNNI": StepCost([0.00214, 0.00215, 0.00231, 0.00312, 0.00509, 0.00996], [0.0] * len(ROWS)),
    "rows cost as passes": StepCost([0.02 * n for n in ROWS], [0.0] * len(ROWS)),
}
PROPOSAL = 0.03  # steps that a proposal takes
UNFORESEEN = 4  # proposals whose cost nobody knew


@dataclass
class Company:
    """Requests that decode together under one policy, each with steps in which its drafts are right."""

    policy: AdaptiveLength
    cost: StepCost
    requests: list[Request]
    right: list[list[int]]  # by request and step: nodes of its proposal that are right
    scores: list[float]

    def __post_init__(self) -> None:
        self.lost = [0.0] * len(self.requests)
        self.plain = [each.stats.prefill_s for each in self.requests]
        self.asked = 0

    def step(self, number: int) -> None:
        """One step of all; adds to what each has lost, and to its time without drafts, reading included."""
        plain_s = self.cost.plain([0] * len(self.requests))
        budgets = self.policy.budget(
            self.requests, [len(self.scores) if r.drafts.has_sources else 0 for r in self.requests]
        )
        proposals, proposing_s = [EMPTY] * len(budgets), 0.0
        for i, budget in enumerate(budgets):
            if budget and self.policy.asks(self.requests[i], "source", ()):
                proposals[i] = Draft.chain([7] * budget, source="source", scores=self.scores[:budget])
                self.policy.observe_proposals(self.requests[i], {"source": ProposalCost(PROPOSAL * plain_s, budget)})
                proposing_s += PROPOSAL * plain_s + self.cost.asking
                self.asked += 1
        kept = self.policy.select(self.requests, proposals, [1] * len(budgets), budgets)
        taken_s = self.cost.pass_seconds([1 + len(draft) for draft in kept], [0] * len(kept)) + proposing_s
        taken_s += self.cost.outside(len(kept)) + self.cost.drafting * sum(map(bool, kept))
        for i, draft in enumerate(kept):
            accepted = min(self.right[i][number % len(self.right[i])], len(draft))
            self.requests[i].stats.completion_tokens += 1 + accepted
            self.policy.observe(self.requests[i], [*[7] * accepted, 8], draft, range(accepted))
            self.plain[i] += (1 + accepted) * plain_s
            self.lost[i] += taken_s - (1 + accepted) * plain_s


def asked(id: str, *, draft: str = "source", read_s: float = 0.0, most: int = 10**6) -> Request:
    r = request([1, 2, 3], SamplingParams(max_tokens=most), id=id, draft=draft, spec_length="auto")
    r.stats.completion_tokens, r.stats.prefill_s = 1, read_s
    return r


RIGHT = st.lists(st.one_of(st.just(0), st.integers(0, 8)), min_size=1, max_size=40)


@pytest.mark.parametrize("name", COSTS)
@hypothesis_settings(max_examples=12, deadline=None)
@given(
    right=st.lists(RIGHT, min_size=1, max_size=6),
    scores=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8),
    read=st.floats(0.0, 100.0),
)
def test_no_request_takes_2_percent_longer_than_without_drafts(
    name: str, right: list[list[int]], scores: list[float], read: float
) -> None:
    """Its prompt counts too; beyond that it may lose a token's time in the beginning. ``read``: steps."""
    cost = COSTS[name]
    step_s = cost.plain([0] * len(right))
    requests = [asked(str(i), read_s=read * step_s) for i in range(len(right))]
    company = Company(AdaptiveLength(lambda: cost), cost, requests, right, scores)
    unforeseen = UNFORESEEN * len(right) * PROPOSAL
    lent_s = (DEFAULT_SETTINGS.lent * DEFAULT_SETTINGS.first + unforeseen) * step_s
    beyond: list[float] = []
    for number in range(50):
        company.step(number)
        beyond += [lost - 0.02 * plain - lent_s for lost, plain in zip(company.lost, company.plain, strict=True)]
    assert len(beyond) == 50 * len(right)
    assert max(beyond) <= 1e-9


def test_a_request_that_drafts_nothing_does_not_pay_for_its_neighbours() -> None:
    """Seven drafts beside it, all of them right: rows cost as much as passes, so it would wait twice as long."""
    cost = COSTS["rows cost as passes"]
    alone = asked("plain", draft="none", read_s=0.4)
    company = Company(
        AdaptiveLength(lambda: cost), cost, [alone, *(asked(str(i)) for i in range(7))], [[0], *[[4]] * 7], [0.9] * 4
    )
    for number in range(100):
        company.step(number)
    assert company.lost[0] <= 0.02 * company.plain[0] + UNFORESEEN * 7 * PROPOSAL * cost.plain([0] * 8)


def test_rows_that_cost_nothing_are_used_beside_others() -> None:
    cost = COSTS["flat"]
    requests = [asked("plain", draft="none", read_s=0.4), *(asked(str(i), read_s=0.4) for i in range(3))]
    company = Company(AdaptiveLength(lambda: cost), cost, requests, [[0], *[[4]] * 3], [0.9] * 4)
    for number in range(100):
        company.step(number)
    assert company.lost[1] < -0.3 * company.plain[1]


def test_a_short_answer_is_lent_less_than_a_long_one() -> None:
    """Others like it have earned; its own drafts are all wrong."""

    def lost(most: int) -> float:
        cost = COSTS["SmolLM2, VNNI"]
        policy = AdaptiveLength(lambda: cost)
        good = Company(policy, cost, [asked("good")], [[4]], [0.9] * 4)
        for number in range(50):
            good.step(number)
        policy.finish("good")
        company = Company(policy, cost, [asked("later", most=most)], [[0]], [0.9] * 4)
        for number in range(15):
            company.step(number)
        return company.lost[0] / cost.plain([0])

    assert lost(16) <= 0.02 * 15 + 0.02 * 16 < 1.0 < lost(1000)


def test_proposals_that_win_nothing_take_half_a_percent_of_the_time() -> None:
    cost = COSTS["flat"]
    company = Company(AdaptiveLength(lambda: cost), cost, [asked("r", read_s=10.0)], [[0]], [0.9] * 4)
    for number in range(200):
        company.step(number)
    before = company.asked
    for number in range(600):
        company.step(number)
    assert 0 < (company.asked - before) * PROPOSAL / 600 <= 0.006
