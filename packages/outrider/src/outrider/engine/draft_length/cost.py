"""What a step costs: T(n), the target's forward pass by the rows it scores, and the time outside of it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from outrider.engine.draft_length.expert_union import ExpertUnion
from outrider.engine.draft_length.row_counts import ROWS, between, nearest, segment
from outrider.engine.draft_length.settings import DEFAULT_SETTINGS, DraftLengthSettings
from outrider.models.experts import ExpertReads

SHORT = 64  # tokens of context behind which ``short`` is timed
DISTURBED = 2.0  # times what was expected that a duration counts as at most


class StepCost:
    """Seconds of a step, from its rows and the contexts they look back on.

        T = short(total rows) + sum over requests of (context - 64) · slope(its rows)

    and, outside the pass, a time for every step and one for each request with a draft. Steps correct all of them.
    With experts, ``short`` goes by those that passes of so many rows are expected to read (``expert_union``).
    """

    def __init__(
        self,
        short: Sequence[float],
        slope: Sequence[float],
        settings: DraftLengthSettings = DEFAULT_SETTINGS,
        experts: ExpertUnion | None = None,
    ) -> None:
        """``short``: seconds of a pass of each of ``ROWS``; ``slope``: seconds more for a token of context."""
        self._timed, self._experts = list(short), experts
        self._short, self._slope, self._weight = list(short), list(slope), settings.weight
        self._ratio = [1.0] * len(ROWS)  # observed over timed
        self._outside: dict[int, float] = {}  # of a step without drafts, by its requests
        self.drafting = 1e-4
        """Seconds outside the pass that scoring a request's draft adds: to select, pack, verify and move its rows."""
        self.asking = 3e-5
        """Seconds that asking a source for a request adds, beside its own: to decide, merge, select and learn."""

    def pass_seconds(self, rows: Sequence[int], contexts: Sequence[int]) -> float:
        """Of a pass in which request ``i`` has ``rows[i]`` rows behind ``contexts[i]`` tokens."""
        return self._rows(sum(rows)) + sum(map(self._beyond, rows, contexts))

    def row(self, total: int, own: int, context: int) -> float:
        """That one more row adds to a pass of ``total`` rows, if its request has ``own`` of them."""
        added = self._rows(total + 1) - self._rows(total) + self._beyond(own + 1, context) - self._beyond(own, context)
        return max(0.0, added)

    def cheapest_row(self, total: int, longest: int) -> float:
        """The least that any row more adds to a pass of ``total`` rows or more, behind ``longest`` tokens or fewer."""
        first, _ = segment(total)
        beyond = max(0, longest - SHORT) * min(0.0, self._least_step(self._slope, 0))
        return max(0.0, self._least_step(self._short, first) + beyond)

    def _least_step(self, values: Sequence[float], first: int) -> float:
        """The least by which values times ratios grow with a row, from place ``first`` of ``ROWS`` on.

        Between two places both are on lines, so their product grows least at one of the ends.
        """
        least = math.inf
        for i in range(first, len(ROWS) - 1):
            rows = ROWS[i + 1] - ROWS[i]
            value, ratio = values[i + 1] - values[i], self._ratio[i + 1] - self._ratio[i]
            begin, bend = (value * self._ratio[i] + ratio * values[i]) / rows, value * ratio / rows**2
            least = min(least, begin + bend, begin + bend * (2 * rows - 1))
        return min(least, value * self._ratio[-1] / rows)  # beyond the last, values go on alone

    def outside(self, requests: int) -> float:
        """Of a step of so many requests without drafts, outside its pass."""
        return self._outside.get(requests, 3e-4)

    def plain(self, contexts: Sequence[int]) -> float:
        """Of a step without drafts."""
        count = len(contexts)
        beyond = sum(contexts) - count * SHORT
        if beyond < 0 or min(contexts) < SHORT:
            beyond = sum([context - SHORT for context in contexts if context > SHORT])
        return self._rows(count) + beyond * self._slope[0] * self._ratio[0] + self.outside(count)

    def observe_pass(self, rows: Sequence[int], contexts: Sequence[int], seconds: float, experts: int = 0) -> None:
        """Learn from a pass; one that took several times as long as expected was disturbed, and counts as twice.

        ``experts``: distinct ones that it read, summed over layers; 0: nobody counted them.
        """
        total, requests = sum(rows), len(rows)
        alone = (
            self.plain(contexts) - self.outside(requests) if total == requests else self.pass_seconds(rows, contexts)
        )
        expected = max(1e-9, alone + self._unexpected(total, experts))
        off = self._weight * math.log(min(DISTURBED, max(1 / DISTURBED, seconds / expected)))
        own, all_rows = nearest(total), math.exp(0.8 * off)
        self._ratio = [ratio * all_rows for ratio in self._ratio]  # a slower machine is slower for all
        self._ratio[own] *= math.exp(0.2 * off)  # a part is this number of rows' own
        if self._experts is not None and experts and total > 1:
            self._experts.observe_pass(total, experts)
            self._short = self._experts.correct(self._timed)

    def observe_text(self, reads: ExpertReads) -> None:
        """Learn from a prompt how many experts neighbours share."""
        if self._experts is not None:
            self._experts.observe_text(reads)
            self._short = self._experts.correct(self._timed)

    def _unexpected(self, total: int, experts: int) -> float:
        """Seconds that a pass takes because it read more experts than expected."""
        if self._experts is None or not experts:
            return 0.0
        more = experts - self._experts.expected(total)
        return more * self._experts.seconds * between(self._ratio, min(total, ROWS[-1]))

    def _rows(self, total: int) -> float:
        return between(self._short, total) * between(self._ratio, min(total, ROWS[-1]))

    def _beyond(self, rows: int, context: int) -> float:
        long = max(0, context - SHORT)
        return long * between(self._slope, rows) * between(self._ratio, min(rows, ROWS[-1]))

    def observe_outside(self, requests: int, asked: int, drafted: int, seconds: float) -> None:
        """Learn from what a step took outside its pass and proposals.

        ``asked``: proposals; ``drafted``: requests with a draft that was scored.
        """
        known, without = self._outside.get(requests), seconds - asked * self.asking
        if not drafted and (known is None or not asked):
            before = without if known is None else known
            self._outside[requests] = before + self._weight * (min(without, DISTURBED * before) - before)
        elif known is not None and drafted:  # else what drafting added cannot be told
            self.drafting = self._moved(self.drafting, (without - known) / drafted)
        elif known is not None:
            self.asking = self._moved(self.asking, (seconds - known) / asked)

    def _moved(self, before: float, seconds: float) -> float:
        """An average after a further timing, which counts as twice at most."""
        return before + self._weight * (min(max(0.0, seconds), DISTURBED * max(before, 1e-5)) - before)
