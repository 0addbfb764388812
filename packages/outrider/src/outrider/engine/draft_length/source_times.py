"""What draft sources take: for a proposal, for a level of one, and for the prompt before the first."""

from __future__ import annotations

from collections.abc import Callable

from outrider.drafters.cost import DraftingCost
from outrider.engine.draft_length.cost import DISTURBED

DraftingCostOf = Callable[[str], DraftingCost | None]
"""By source: what its drafts take, timed now; None: it has no encoder to run."""


def no_encoder(source: str) -> DraftingCost | None:
    """Of sources that read nothing but text."""
    return None


class TypicalSeconds:
    """What a thing takes, from timings of which some were disturbed: by the collection of garbage, or the first call.

    The least of the first few; later an average, in which a timing counts as twice the average at most.
    """

    _FEW = 8

    def __init__(self, weight: float) -> None:
        self._weight, self._seen, self._seconds = weight, 0, 0.0

    @property
    def seconds(self) -> float | None:
        """None until two timings say so: one may have been disturbed."""
        return self._seconds if self._seen > 1 else None

    def observe(self, seconds: float) -> float:
        """A further timing; what it counts as."""
        counted = seconds if self._seen == 0 else min(seconds, DISTURBED * max(self._seconds, 1e-6))
        if self._seen < self._FEW:
            self._seconds = seconds if self._seen == 0 else min(self._seconds, seconds)
        else:
            self._seconds += self._weight * (counted - self._seconds)
        self._seen += 1
        return counted


class SourceTimes:
    """Typical seconds by source; 0 where nobody knows."""

    def __init__(self, weight: float, drafting_cost: DraftingCostOf) -> None:
        self._weight, self._drafting_cost = weight, drafting_cost
        self._level: dict[str, TypicalSeconds] = {}  # for a level of a draft
        self._proposal: dict[str, TypicalSeconds] = {}  # for a whole one
        self._reading: dict[str, TypicalSeconds] = {}  # before its first one, for a token of the prompt
        self._growing: set[str] = set()  # sources that ask before each level, so that a draft may end after one
        self._encoders: dict[str, DraftingCost | None] = {}

    def level(self, name: str) -> float:
        """Of a level of a draft."""
        known = self._level.get(name)
        return 0.0 if known is None else known.seconds or 0.0

    def proposal(self, name: str) -> float:
        """Of a proposal at least."""
        if name in self._growing:
            return self.level(name)
        known = self._proposal.get(name)
        return 0.0 if known is None else known.seconds or 0.0

    def reading(self, name: str) -> float | None:
        """Of a token of the prompt; None until it has read one."""
        known = self._reading.get(name)
        return None if known is None else known.seconds or 0.0

    def grows(self, name: str) -> None:
        """Record that a source asks before each level."""
        self._growing.add(name)

    def observe(self, name: str, seconds: float, levels: int) -> float:
        """Learn from a proposal; what it counts as."""
        level = self._level.setdefault(name, TypicalSeconds(self._weight))
        counted = levels * level.observe(seconds / levels)
        self._proposal.setdefault(name, TypicalSeconds(self._weight)).observe(counted)
        return counted

    def observe_first(self, name: str, seconds: float, levels: int, tokens: int) -> tuple[float, float]:
        """Learn from a request's first proposal, before which ``tokens`` are read: what it and the reading count as.

        The first of all, when code is loaded, counts as no reading: it says nothing of any other.
        """
        counted, first = levels * self.level(name), name not in self._reading
        reading = self._reading.setdefault(name, TypicalSeconds(self._weight))
        read_s = tokens * reading.observe(max(0.0, seconds - counted) / tokens)
        return counted, 0.0 if first else read_s

    def time_encoder(self, name: str) -> None:
        """Have a source tell what its encoder takes, unless it has."""
        if name not in self._encoders:
            self._encoders[name] = self._drafting_cost(name)

    def encoder(self, name: str) -> DraftingCost | None:
        """What its encoder takes, once that was timed."""
        return self._encoders.get(name)
