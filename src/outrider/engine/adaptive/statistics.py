"""What draft sources have cost and won: of each request, and over all of them (``engine.controller``)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from outrider.core.draft import EMPTY, Draft

_WASTE = 0.01  # share of a request's time that a source without success may take, once it has begun
_RISK = 0.005  # share of all requests' time that beginning with a source in vain may take
_LONGEST_REST = 1024  # steps
_NEW = 16  # steps in which a source is tried, once in an engine's life
_KNOWN = 200  # steps whose average tells what a source is worth
MEMORY = 0.9  # weight of the past, of profits and of what a level takes


@dataclass(frozen=True)
class Effort:
    """What a source's proposal for a request took."""

    seconds: float
    levels: int  # of the proposal; 0: it had nothing to say


@dataclass
class SourceBooks:
    """What one of a request's sources has won lately."""

    profit: float = 0.0  # seconds a step, decaying average
    rest: int = 0  # steps without it from here on
    begun: bool = False
    spent: float = 0.0  # seconds it took to propose
    extra: float = 0.0  # seconds that its scored nodes added to the run

    def settle(self, accepted: int, token: float, account: Account) -> None:
        """The books of a step in which ``accepted`` of its nodes were kept; ``token``: seconds each saved."""
        if self.spent or self.extra:
            self.profit = MEMORY * self.profit + (1 - MEMORY) * (accepted * token - self.extra - self.spent)
            account.count()
            if self.profit < 0 and not account.new:
                # Rows of a source that pays on the whole are judged one by one; those of others are waste too.
                cost = self.spent if account.promise > 0 else self.spent + self.extra
                self.rest = min(_LONGEST_REST, max(0, math.ceil(cost / (_WASTE * token)) - 1))
        self.spent = self.extra = 0.0


@dataclass
class Account:
    """What a source has done for all requests, the reading of prompts for it included."""

    debt: float = 0.0  # seconds it has cost lately beyond what it saved; below 0 is credit
    won: float = 0.0  # seconds, in so many
    steps: float = 0.0  # with the source

    @property
    def new(self) -> bool:
        """Whether so little is known that it neither rests nor is held to what it cost: first calls are slow."""
        return self.steps < _NEW

    @property
    def promise(self) -> float:
        """Seconds that a request may expect to win a step, until it knows better: one failure is no reason to rest."""
        return max(0.0, self.won / self.steps) if self.steps else 0.0

    @property
    def affordable(self) -> bool:
        """Whether another request may begin with the source."""
        return self.new or self.debt <= 0 or self.promise > 0

    def book(self, lost: float, token: float) -> None:
        """``lost``: seconds, below 0 if won. Neither old losses nor old wins count for longer than a long rest."""
        limit = _LONGEST_REST * _RISK * token
        self.debt = max(-limit, min(limit, self.debt + lost))
        self.won -= lost

    def count(self) -> None:
        """A step with the source is over; old ones are forgotten by and by."""
        self.steps += 1
        if self.steps >= _KNOWN:
            self.steps, self.won = self.steps / 2, self.won / 2

    def repay(self, token: float) -> None:
        """A token's step has passed: a share of it has been won back."""
        if self.debt > 0:
            self.debt = max(0.0, self.debt - _RISK * token)


@dataclass
class RequestBooks:
    """One request's sources by name, and what they are at in this step."""

    sources: dict[str, SourceBooks]
    awake: tuple[str, ...] = ()
    proposed: Draft = EMPTY

    def by_source(self, draft: Draft, nodes: Iterable[int]) -> Counter[str]:
        """How many of these nodes each source gave; what bears no source's name is the first one's."""
        first = next(iter(self.sources))
        given = (draft.source_of(node) for node in nodes)
        return Counter(name if name in self.sources else first for name in given)
