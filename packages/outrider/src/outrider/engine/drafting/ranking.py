"""Ranks the alternative groups of sources of a request: ``draft="a/b"``."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.config.combination import Group

PROBE_INTERVAL = 16
"""Steps after which the alternative that was not asked for longest goes first."""
_WEIGHT = 0.1  # of a draft in the mean of an alternative: about ten are remembered


class Ranking:
    """Ranks groups by the running mean of their accepted draft tokens; untried groups come first.

    Deterministic, and without effect on the output: the choice precedes every draw.
    """

    def __init__(self, groups: Sequence[Group]) -> None:
        self._mean: dict[Group, float | None] = dict.fromkeys(groups)
        self._last_asked: dict[Group, int] = dict.fromkeys(groups, 0)
        self._steps = 0
        self._asked: Group | None = None

    def order(self) -> list[Group]:
        """The groups in the order of asking in this step."""
        self._steps += 1
        self._asked = None
        ranked = sorted(self._mean, key=lambda group: -self._expected(group))
        if self._steps % PROBE_INTERVAL == 0:
            longest = min(ranked, key=self._last_asked.__getitem__)
            ranked.remove(longest)
            ranked.insert(0, longest)
        return ranked

    def asked(self, group: Group) -> None:
        """Record that the target will score the draft of ``group``."""
        self._asked = group
        self._last_asked[group] = self._steps

    def observe(self, accepted: int) -> None:
        """Learn the number of accepted tokens of that draft; without a draft, nothing."""
        if self._asked is not None:
            before = self._mean[self._asked]
            self._mean[self._asked] = accepted if before is None else before + _WEIGHT * (accepted - before)

    def _expected(self, group: Group) -> float:
        mean = self._mean[group]
        return float("inf") if mean is None else mean
