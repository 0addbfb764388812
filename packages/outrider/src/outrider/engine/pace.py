"""How long a step may take, and how many rows that is: measured, as machines and models differ by thousands."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from outrider.engine.request import PROMPT_LOGITS_COST, Request
from outrider.engine.runner import ScheduledRequest
from outrider.utils.row_cost import WEIGHT, RowCost

STEP_SECONDS = 0.5
"""That a step is planned to take at most while another tenant has requests."""
ALONE_SECONDS = 2.0
"""The same while a tenant is alone: another may come at any time. Where there are no tenants, nothing is planned."""
_DRAFTING = 0.5  # of a step's seconds, at most


class Pace:
    """The plan of a step's time, from what the steps before it took."""

    def __init__(self) -> None:
        self.cost = RowCost()  # of steps of the engine without their drafting
        self._drafting = 0.0  # seconds at most, lately
        self.step = math.inf
        """Seconds that this step may take."""

    def begin(self, *, shared: bool, named: bool) -> int | None:
        """Plan a step: its rows at most, or None for any number.

        Args:
            shared: requests of several tenants wait or run.
            named: there are tenants at all.
        """
        self.step = STEP_SECONDS if shared else ALONE_SECONDS if named else math.inf
        if self.step == math.inf:
            return None
        return self.cost.rows_within(self.step - min(self._drafting, self.drafting))

    @property
    def drafting(self) -> float:
        """Seconds that drafts may take in this step."""
        return _DRAFTING * self.step

    def end(self, rows: int, drafting: float, others: float) -> None:
        """A step has ended that computed so many rows; seconds of its drafting, and of all else."""
        self._drafting = max(drafting, self._drafting + WEIGHT * (drafting - self._drafting))
        if rows:
            self.cost.observe(rows, others)


class StepTimes:
    """What a step takes, and for whom: drafting as it was measured for each request, all else by their rows."""

    def __init__(self, clock: Callable[[], float], requests: Sequence[Request]) -> None:
        self._clock, self._began = clock, clock()
        self._before = {request.id: request.stats.draft_s for request in requests}

    def drafted(self) -> None:
        """All drafts have been made."""
        self._drafted = self._clock()

    def ended(
        self, scheduled: Sequence[ScheduledRequest], charge: Callable[[str, float], None]
    ) -> tuple[int, float, float]:
        """Charge each tenant its seconds; the step's rows, and the seconds of its drafting and of all else."""
        others = self._clock() - self._drafted
        rows = [
            each.num_tokens * (PROMPT_LOGITS_COST if each.wants_prompt_logits else 1) + len(each.draft)
            for each in scheduled
        ]
        for each, own in zip(scheduled, rows, strict=True):
            drafting = each.request.stats.draft_s - self._before[each.request.id]
            charge(each.request.tenant, drafting + others * own / sum(rows))
        return sum(rows), self._drafted - self._began, others
