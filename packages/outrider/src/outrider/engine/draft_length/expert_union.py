"""The distinct experts that a pass reads, by its rows: rows of one text share many, and so are cheaper than others.

    T(n) = measured(n) + seconds of an expert * (E[union(n)] - union(n) when it was measured)

Calibration reads rows that share few experts. ``E[union(n)]`` is the mean over the passes since, and over neighbours
in the prompts; the last of them count most, as texts change.
"""

from __future__ import annotations

from collections.abc import Sequence

from outrider.engine.draft_length.row_counts import ROWS, between, nearest
from outrider.models.experts import ExpertReads

_TIMED = 3
"""Passes that a timed one counts as: a request's first draft may be of tokens that share less than its prompt's."""


class ExpertUnion:
    """Distinct experts, summed over layers, that passes of so many rows are expected to read."""

    def __init__(self, timed: Sequence[float], seconds: float, weight: float) -> None:
        """
        Args:
            timed: experts that a timed pass of each of ``ROWS`` has read.
            seconds: that one more expert takes.
            weight: of one pass in the average, once several have been seen.
        """
        self.seconds, self._weight = seconds, weight
        self._timed, self._mean = list(timed), list(timed)
        self._seen = [_TIMED] * len(ROWS)

    def expected(self, rows: int) -> float:
        """E[union] of a pass of so many rows."""
        return between(self._mean, rows)

    def correct(self, timed: Sequence[float]) -> list[float]:
        """Seconds of a pass of each of ``ROWS`` with the experts it reads now, from those ``timed``; more rows take no
        less."""
        out: list[float] = []
        for seconds, mean, then in zip(timed, self._mean, self._timed, strict=True):
            out.append(max(seconds + self.seconds * (mean - then), *out[-1:], 0.0))
        return out

    def observe_pass(self, rows: int, count: int) -> None:
        """Learn from a pass that read ``count`` experts."""
        if rows > 1:
            self._learn(nearest(rows), count - self.expected(rows))

    def observe_text(self, reads: ExpertReads) -> None:
        """Learn from the neighbours in a prompt; one of a few tokens says too little."""
        if ROWS[-1] in reads.by_rows:
            for i, rows in enumerate(ROWS[1:], 1):
                self._learn(i, reads.by_rows[rows] - self._mean[i])

    def _learn(self, i: int, off: float) -> None:
        self._mean[i] += max(self._weight, 1 / (1 + self._seen[i])) * off
        self._seen[i] += 1
