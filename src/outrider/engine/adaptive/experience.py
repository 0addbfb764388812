"""What the requests of one domain have taught about drafts: how likely they are accepted, what drafters gain."""

from __future__ import annotations

from outrider.engine.adaptive.acceptance import Acceptance, Measured, nothing_measured
from outrider.engine.adaptive.settings import AdaptiveSettings
from outrider.engine.adaptive.statistics import SourceTotals

CAPACITY = 16 << 20  # bytes of all domains together
_RATE_BYTES = 2500  # of what is known of a drafter, about


class Experience:
    """A ``Store`` of ``outrider.utils.domains``: how much is drafted, which answers report, tells of the texts."""

    def __init__(self, settings: AdaptiveSettings, measured: Measured = nothing_measured) -> None:
        self._settings = settings
        self.acceptance = Acceptance(settings, measured)
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
