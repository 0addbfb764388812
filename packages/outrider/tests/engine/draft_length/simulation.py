"""A request on a machine of known costs, whose draft tokens are right by a known law: no model and no clock."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from outrider.config import SamplingParams
from outrider.engine.draft_length.adaptive import AdaptiveLength
from outrider.engine.draft_length.cost import StepCost
from outrider.engine.draft_length.policy import ProposalCost
from outrider.engine.draft_length.row_counts import ROWS
from outrider.engine.request import Request
from outrider.verify.draft import EMPTY, Draft
from tests.small_engines import request

MOST = 16  # draft tokens of a step
PROPOSING = 1e-5  # seconds of a proposal

Law = Callable[[int], float]  # by step: how likely a draft token is to be right, if the one before it was
COSTS = {
    "flat": [0.0100, 0.0100, 0.0100, 0.0113, 0.0137, 0.0190],  # four rows cost what one costs
    "linear": [0.010 + 0.0008 * n for n in ROWS],
    "steep": [0.010 + 0.0040 * n for n in ROWS],
}


def machine(name: str) -> StepCost:
    return StepCost(COSTS[name], [0.0] * len(ROWS))


def always(alpha: float) -> Law:
    return lambda step: alpha


def changing(before: float, after: float, at: int) -> Law:
    return lambda step: before if step < at else after


def asked(id: str = "r", domain: str = "", prompt: int = 3, **params: float) -> Request:
    options = SamplingParams(max_tokens=100_000, **params)  # type: ignore[arg-type]
    made = request([1] * prompt, options, id=id, draft="source", spec_length="auto")
    made.cache_salt = made.tenant = domain
    return made


def expected_tokens(alpha: float, length: int) -> float:
    return sum(alpha**i for i in range(length + 1))


def seconds(cost: StepCost, length: int) -> float:
    """What a step with so many draft tokens takes."""
    drafting = 1e-4 + PROPOSING if length else 0.0
    return cost.pass_seconds([1 + length], [0]) + 3e-4 + drafting


@dataclass
class Played:
    """What became of a request: expected tokens and seconds, and how much was drafted in each step."""

    tokens: float = 0.0
    seconds: float = 0.0
    lengths: list[int] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


def play(
    policy: AdaptiveLength,
    r: Request,
    cost: StepCost,
    law: Law,
    *,
    steps: int,
    score: Law | None = None,
    seed: int = 0,
) -> Played:
    """``steps`` steps of a request. ``score``: what the drafter says of its tokens, by step; None: nothing.

    Tokens are counted as expected by the law, so that only the choice of lengths is judged.
    """
    rng, played = random.Random(seed), Played()
    for step in range(steps):
        (budget,) = policy.budget([r], [MOST])
        scores = None if score is None else [score(step)] * budget
        draft = Draft.chain([7] * budget, source="source", scores=scores) if budget else EMPTY
        if budget:
            policy.observe_proposals(r, {"source": ProposalCost(PROPOSING, budget)})
        (kept,) = policy.select([r], [draft], [1], [budget])
        right = next((i for i in range(MOST) if rng.random() >= law(step)), MOST)
        accepted = min(right, len(kept))
        policy.observe(r, [*[7] * accepted, 7 if right > accepted else 8], kept, range(accepted))
        played.lengths.append(len(kept))
        played.tokens += expected_tokens(law(step), len(kept))
        played.seconds += seconds(cost, len(kept))
    policy.finish(r.id)
    return played


def best_fixed(cost: StepCost, law: Law, steps: int) -> tuple[float, int]:
    """Tokens a second of the best fixed length, and that length."""
    rates: Sequence[float] = [
        sum(expected_tokens(law(step), length) for step in range(steps)) / (steps * seconds(cost, length))
        for length in range(MOST + 1)
    ]
    return max(rates), max(range(MOST + 1), key=rates.__getitem__)
