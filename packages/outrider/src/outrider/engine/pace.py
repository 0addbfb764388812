"""Limits the time of a step, and converts it into rows by measurement: machines and models differ a thousandfold."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from outrider.engine.request import PROMPT_LOGITS_COST, Request
from outrider.engine.runner import ScheduledRequest
from outrider.utils.row_cost import WEIGHT, RowCost

STEP_SECONDS = 0.5
"""The longest planned step while several tenants have requests."""
ALONE_SECONDS = 2.0
"""The longest planned step with one tenant, as another may come at any time. Without tenants there is no limit."""
_DRAFTING = 0.5  # the largest share of a step's seconds for drafting


class Pace:
    """Plans the time of a step from the times of earlier steps."""

    def __init__(self) -> None:
        self.cost = RowCost()  # of the engine's steps without drafting
        self._drafting = 0.0  # decaying maximum of the seconds of drafting
        self.step = math.inf
        """The seconds that this step may take."""

    def begin(self, *, shared: bool, named: bool) -> int | None:
        """Plan a step: the most rows, or None for no limit.

        Args:
            shared: whether requests of several tenants wait or run.
            named: whether any request has a tenant.
        """
        self.step = STEP_SECONDS if shared else ALONE_SECONDS if named else math.inf
        if self.step == math.inf:
            return None
        return self.cost.rows_within(self.step - min(self._drafting, self.drafting))

    @property
    def drafting(self) -> float:
        """The seconds that drafting may take in this step."""
        return _DRAFTING * self.step

    def end(self, rows: int, drafting: float, others: float) -> None:
        """A step has ended: the rows computed, its seconds of drafting, and its other seconds."""
        self._drafting = max(drafting, self._drafting + WEIGHT * (drafting - self._drafting))
        if rows:
            self.cost.observe(rows, others)


class StepTimes:
    """Divides a step's time between requests: drafting as measured for each request, the rest by rows."""

    def __init__(self, clock: Callable[[], float], requests: Sequence[Request]) -> None:
        self._clock, self._began = clock, clock()
        self._before = {request.id: request.stats.draft_s for request in requests}

    def drafted(self) -> None:
        """All drafts have been made."""
        self._drafted = self._clock()

    def ended(
        self, scheduled: Sequence[ScheduledRequest], charge: Callable[[str, float], None]
    ) -> tuple[int, float, float]:
        """Charge each tenant its seconds; returns the step's rows, seconds of drafting, and other seconds."""
        others = self._clock() - self._drafted
        rows = [
            each.num_tokens * (PROMPT_LOGITS_COST if each.wants_prompt_logits else 1) + len(each.draft)
            for each in scheduled
        ]
        for each, own in zip(scheduled, rows, strict=True):
            drafting = each.request.stats.draft_s - self._before[each.request.id]
            charge(each.request.tenant, drafting + others * own / sum(rows))
        return sum(rows), self._drafted - self._began, others


class DraftTime:
    """The deadline for drafting, set when a step begins. Any thread may end drafting at once with ``cut``."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._end = math.inf
        self._asked: dict[str, float] = {}  # when a request last asked for another level

    def begin(self, seconds: float) -> None:
        """A step begins, with ``seconds`` for drafting."""
        self._end = math.inf if seconds == math.inf else self._clock() + seconds
        self._asked.clear()

    def cut(self) -> None:
        """A new request waits for this step: start no further level of a draft."""
        self._end = -math.inf

    def left(self) -> float:
        """The seconds left; infinite without a limit."""
        return self._end if math.isinf(self._end) else self._end - self._clock()

    def has_level(self, request_id: str) -> bool:
        """Whether time is left for another level of a request's draft that takes as long as the last level."""
        if self._end == math.inf:
            return True
        now = self._clock()
        level = now - self._asked.get(request_id, now)
        self._asked[request_id] = now
        return now + level < self._end
