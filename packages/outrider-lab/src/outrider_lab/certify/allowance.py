"""The time that a session may take, divided over its parts.

The clock counts the processor time of the thread that runs the engine. On an idle machine it is about the time that
passes. On a busy machine a session takes longer, and tests as much.

The number of samples of a statistical test is fixed before the first sample is drawn, from the time of pilot samples
that are not counted. A test's findings therefore do not decide its length, and its level of significance holds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable


class Allowance:
    """``seconds`` of the clock from now on; unlimited by default."""

    def __init__(self, seconds: float = math.inf, clock: Callable[[], float] = time.thread_time) -> None:
        self._clock = clock
        self._end = clock() + seconds

    @property
    def left(self) -> float:
        """Seconds left, at least 0."""
        return max(0.0, self._end - self._clock())

    def part(self, share: float) -> Allowance:
        """An allowance of a ``share`` of the time left."""
        return Allowance(share * self.left, self._clock)

    def times(self, work: int, *, least: int, most: int, pilot: Callable[[], int]) -> int:
        """Repetitions of ``work`` pieces that fit into the time left, from ``least`` to ``most``.

        ``pilot`` does some pieces and returns their number; it is not called with unlimited time.
        """
        if math.isinf(self.left):
            return most
        began = self._clock()
        pieces = pilot()
        seconds_each = (self._clock() - began) / pieces
        affordable = self.left / max(work * seconds_each, 1e-9)
        return min(most, max(least, int(affordable)))
