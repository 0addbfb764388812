"""What the requests of one domain have taught about drafts: how likely they are accepted, what drafters gain."""

from __future__ import annotations

from outrider.engine.adaptive.acceptance import Acceptance
from outrider.engine.adaptive.settings import AdaptiveSettings
from outrider.engine.adaptive.statistics import SourceTotals

CAPACITY = 16 << 20  # bytes of all domains together
_RATE_BYTES = 250  # of a rate, or a drafter's totals, about


class Experience:
    """A ``Store`` of ``outrider.utils.domains``: how much is drafted, which answers report, tells of the texts."""

    def __init__(self, settings: AdaptiveSettings) -> None:
        self._settings = settings
        self.acceptance = Acceptance(settings)
        self._totals: dict[str, SourceTotals] = {}

    def totals_of(self, source: str) -> SourceTotals:
        """What a drafter has cost and gained over all requests of the domain."""
        if source not in self._totals:
            self._totals[source] = SourceTotals(self._settings)
        return self._totals[source]

    @property
    def size(self) -> int:
        return _RATE_BYTES * (self.acceptance.num_rates + len(self._totals))

    def forget(self) -> None:
        self.acceptance.forget_rates()
        self._totals.clear()
