"""Whether drafts can pay for an encoder that must run before the first of them, reckoned before it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from outrider.drafters.cost import DraftingCost
from outrider.engine.adaptive.cost import ForwardPassCost
from outrider.engine.adaptive.overhead import StepOverhead
from outrider.models.inputs import InputSource

CostOf = Callable[[str], DraftingCost | None]
"""By drafter: what its drafts take, timed now; None: it has no encoder to run."""


def no_encoder(source: str) -> DraftingCost | None:
    """Of drafters that read nothing but text."""
    return None


class EncoderCosts:
    """What drafts take by drafter, timed once, and whether they could pay for their encoder."""

    def __init__(self, cost_of: CostOf = no_encoder) -> None:
        self._cost_of = cost_of
        self._costs: dict[str, DraftingCost | None] = {}

    def time(self, source: str) -> DraftingCost | None:
        """Time what its drafts take, unless that has been done."""
        if source not in self._costs:
            self._costs[source] = self._cost_of(source)
        return self._costs[source]

    def can_pay(self, source: str, given: InputSource, tokens: float, saved: Callable[[float], float]) -> bool:
        """Whether a request's next ``tokens`` win back what reading ``given`` takes, if all drafts are right.

        ``saved``: seconds a token, where a level of a draft takes so many.
        """
        cost = self.time(source)
        return cost is None or saved(cost.level) * tokens > cost.reading(given)


def most_saved(
    forward_pass: ForwardPassCost, overhead: StepOverhead, contexts: Sequence[int], levels: int, level: float
) -> float:
    """Seconds that drafts of at most ``levels`` levels save for a token, if all of them are right.

    For each of the requests with ``contexts``, which draft together; a level takes ``level`` seconds for all of them.
    Below 0 where even such drafts lose.
    """
    count = len(contexts)

    def token_seconds(length: int) -> float:
        seconds = forward_pass.seconds([1 + length] * count, contexts) + overhead.plain(count)
        if length:
            seconds += length * level + count * overhead.drafting
        return seconds / (count * (1 + length))

    # T is linear between the measured sizes, and so the best length is one of these.
    lengths = {min(rows - 1, levels) for rows in forward_pass.settings.measured_rows if rows > 1}
    return token_seconds(0) - min(token_seconds(length) for length in lengths)
