"""Which of several sources is best for a request: ``draft="a/b"``."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.config.combination import Group

MEMORY = 0.9  # how much of an estimate survives a step: about ten drafts are remembered
PROBE_EVERY = 16  # steps after which the one that was not asked for longest goes first, so that it can recover


class Ranking:
    """Running means of the draft tokens accepted from each group, the best first; untried ones before all others.

    Deterministic, and without effect on the output: it chooses who is asked, before anything is drawn.
    """

    def __init__(self, groups: Sequence[Group]) -> None:
        self._value: dict[Group, float | None] = dict.fromkeys(groups)
        self._last_asked: dict[Group, int] = dict.fromkeys(groups, 0)
        self._steps = 0
        self._asked: Group | None = None

    def order(self) -> list[Group]:
        """The groups as they should be tried in this step."""
        self._steps += 1
        self._asked = None
        ranked = sorted(self._value, key=lambda group: -self._worth(group))
        if self._steps % PROBE_EVERY == 0:
            longest = min(ranked, key=self._last_asked.__getitem__)
            ranked.remove(longest)
            ranked.insert(0, longest)
        return ranked

    def asked(self, group: Group) -> None:
        """Whose draft the target is going to score."""
        self._asked = group
        self._last_asked[group] = self._steps

    def observe(self, accepted: int) -> None:
        """How many tokens of that draft were kept; without a draft nothing is learned."""
        if self._asked is not None:
            before = self._value[self._asked]
            self._value[self._asked] = accepted if before is None else MEMORY * before + (1 - MEMORY) * accepted

    def _worth(self, group: Group) -> float:
        value = self._value[group]
        return float("inf") if value is None else value
