"""What the requests of one domain have taught about drafts: how likely they are accepted, what drafters gain."""

from __future__ import annotations

from collections import OrderedDict

from outrider.engine.adaptive.acceptance import Acceptance, Measured, nothing_measured
from outrider.engine.adaptive.kinds import Kind
from outrider.engine.adaptive.settings import AdaptiveSettings
from outrider.engine.adaptive.statistics import SourceTotals

CAPACITY = 16 << 20  # bytes of all domains together
_RATE_BYTES = 2500  # of what is known of a drafter, about
_TOTALS_BYTES = 300  # of what it has cost and gained in requests of a kind


class Experience:
    """A ``Store`` of ``utils.partitioned_store``: how much is drafted, which answers report, tells of the texts."""

    def __init__(self, settings: AdaptiveSettings, measured: Measured = nothing_measured) -> None:
        self._settings = settings
        self.acceptance = Acceptance(settings, measured)
        self._totals: OrderedDict[tuple[Kind, str], SourceTotals] = OrderedDict()
        self._encoder_debt: dict[str, float] = {}  # by drafter: seconds of its encoder that nothing has paid for yet
        self._tokens: float | None = None  # of a request that has ended, decaying average

    def may_encode(self, source: str) -> bool:
        """Whether what the drafter's encoder took before is paid for, by gains in any requests or a share of time."""
        return self._encoder_debt.get(source, 0.0) <= 0.0

    def record_encoder(self, source: str, seconds: float) -> None:
        """The drafter has run its encoder for a request."""
        self._encoder_debt[source] = self._encoder_debt.get(source, 0.0) + seconds

    def pay_encoder(self, source: str, gain: float, token: float) -> None:
        """A step has passed in which the drafter gained so many seconds; ``token``: seconds of one without drafts."""
        debt = self._encoder_debt.get(source, 0.0)
        if debt > 0:
            self._encoder_debt[source] = max(0.0, debt - gain - self._settings.max_risk * token)

    def expected_tokens(self, most: int) -> float:
        """Tokens that a request is expected to have in all, which may have ``most``."""
        return self._settings.expected_share * most if self._tokens is None else min(most, self._tokens)

    def record_tokens(self, tokens: int) -> None:
        """A request has ended with about so many."""
        weight = self._settings.decay
        self._tokens = tokens if self._tokens is None else weight * self._tokens + (1 - weight) * tokens

    def totals_of(self, kind: Kind, source: str) -> SourceTotals:
        """What a drafter has cost and gained over all requests of a kind in the domain."""
        totals = self._totals.get((kind, source))
        if totals is None:
            totals = self._totals[kind, source] = SourceTotals(self._settings)
        self._totals.move_to_end((kind, source))
        if len(self._totals) > self._settings.max_kinds:
            self._totals.popitem(last=False)
        return totals

    @property
    def size(self) -> int:
        return _RATE_BYTES * self.acceptance.num_rates + _TOTALS_BYTES * len(self._totals)

    def evict(self) -> None:
        self.acceptance.forget_rates()
        self._totals.clear()
        self._encoder_debt.clear()
        self._tokens = None
