"""What drafters have cost and gained: in each request, and in all of its kind (docs/algorithms/adaptive.md).

All amounts are seconds. A step with a drafter costs what its proposal took and what its scored nodes added to the
forward pass; every accepted token gains the time of a token without drafts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from outrider.engine.adaptive.settings import DEFAULT_SETTINGS, AdaptiveSettings
from outrider.verify.draft import EMPTY, Draft


@dataclass(frozen=True)
class ProposalCost:
    """What a drafter's proposal for a request took."""

    seconds: float
    levels: int  # of the proposal; 0: it proposed nothing


@dataclass
class SourceTotals:
    """What a drafter has cost and gained over all requests of a kind, including the reading of prompts for it."""

    settings: AdaptiveSettings = DEFAULT_SETTINGS
    debt: float = 0.0  # seconds it has cost lately beyond what it gained; below 0 is credit
    gained: float = 0.0  # seconds, net, in so many
    steps: float = 0.0  # with the drafter

    @property
    def is_new(self) -> bool:
        """Whether so little is known that it is neither paused nor charged for its first calls, which are slow."""
        return self.steps < self.settings.warmup_steps

    @property
    def expected_gain(self) -> float:
        """Seconds that a request may expect to gain in a step, until it knows better from its own steps."""
        return max(0.0, self.gained / self.steps) if self.steps else 0.0

    def may_start(self, token: float) -> bool:
        """Whether another request may begin with the drafter: unless it loses, and that is not yet paid for."""
        return self.is_new or self.debt <= 0 or not self.loses(token)

    def loses(self, token: float) -> bool:
        """Whether it has cost more than it gained in so many steps that chance does not explain it."""
        return self.gained < -self.settings.gain_noise * token * math.sqrt(self.steps)

    def record(self, lost: float, token: float) -> None:
        """Add ``lost`` seconds, below 0 if gained; ``token``: seconds of a token without drafts.

        Neither debt nor credit grows beyond what the longest pause would pay for.
        """
        limit = self.settings.max_pause * self.settings.max_risk * token
        self.debt = max(-limit, min(limit, self.debt + lost))
        self.gained -= lost

    def count_step(self) -> None:
        """A step with the drafter is over. Old steps decay."""
        self.steps += 1
        if self.steps >= self.settings.gain_window:
            self.steps, self.gained = self.steps / 2, self.gained / 2

    def decay_debt(self, token: float) -> None:
        """Another step of a request has passed, and a share of its time is set against the debt."""
        if self.debt > 0:
            self.debt = max(0.0, self.debt - self.settings.max_risk * token)


@dataclass
class SourceStatistics:
    """What one of a request's drafters has gained lately."""

    profit: float = 0.0  # seconds a step, decaying average
    prospect: float = 0.0  # the same of what was expected when nodes were selected
    pause: int = 0  # steps without it from here on
    started: bool = False  # whether it has proposed for this request before
    proposing: float = 0.0  # seconds its proposal took in this step
    scoring: float = 0.0  # seconds its scored nodes added to the forward pass of this step
    expected: float = 0.0  # of its scored nodes, how many were expected to be accepted in this step

    def record_step(self, accepted: int, token: float, totals: SourceTotals) -> None:
        """A step is over in which ``accepted`` of its nodes were accepted; ``token``: seconds that each saved.

        It rests if it has lost lately and was expected to: in ten steps, luck weighs more than what a drafter is worth.
        What is expected has been corrected by all that was accepted before.
        """
        if self.proposing or self.scoring:
            settings = totals.settings
            cost, weight = self.scoring + self.proposing, 1 - settings.decay
            self.profit += weight * (accepted * token - cost - self.profit)
            self.prospect += weight * (self.expected * token - cost - self.prospect)
            totals.count_step()
            if self.profit < 0 and self.prospect < 0 and not totals.is_new:
                # ``select`` judges rows one by one; those of a drafter that loses all the same are waste.
                waste = cost if totals.loses(token) else self.proposing
                pause = math.ceil(waste / (settings.max_waste * token)) - 1
                self.pause = min(settings.max_pause, max(0, pause))
        self.proposing = self.scoring = self.expected = 0.0


@dataclass
class RequestStatistics:
    """One request's drafters by name, and what they are doing in this step."""

    sources: dict[str, SourceStatistics]
    totals: dict[str, SourceTotals]  # of the same drafters, in all requests of its kind
    active: tuple[str, ...] = ()  # those that are not paused
    proposed: Draft = EMPTY
    tokens: int = 0  # committed so far

    def expect(self, draft: Draft, probabilities: Sequence[float]) -> None:
        """Note how many nodes of a draft that is scored are expected to be accepted, for who proposed them."""
        first = next(iter(self.sources))
        for node, probability in enumerate(probabilities):
            name = draft.source_of(node)
            self.sources[name if name in self.sources else first].expected += probability

    def count_by_source(self, draft: Draft, nodes: Iterable[int]) -> Counter[str]:
        """How many of these nodes each drafter proposed; a node that names none of them counts for the first."""
        first = next(iter(self.sources))
        given = (draft.source_of(node) for node in nodes)
        return Counter(name if name in self.sources else first for name in given)
