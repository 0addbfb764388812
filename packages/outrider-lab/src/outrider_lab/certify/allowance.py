"""How long a session may take, shared out over its parts.

Counted is the processor time of the thread that runs the engine: on a machine with nothing else to do that is about the
time that goes by, and beside other work as much is tested in more time.

How many samples a statistical test takes is fixed before the first is drawn, from the time that a few others took which
are not counted. So a test's findings do not decide its length, and its level of significance holds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable


class Allowance:
    """Seconds of the clock from now on; without end by default."""

    def __init__(self, seconds: float = math.inf, clock: Callable[[], float] = time.thread_time) -> None:
        self._clock = clock
        self._end = clock() + seconds

    @property
    def left(self) -> float:
        """Seconds, not below 0."""
        return max(0.0, self._end - self._clock())

    def part(self, share: float) -> Allowance:
        """``share`` of the time left."""
        return Allowance(share * self.left, self._clock)

    def times(self, work: int, *, least: int, most: int, pilot: Callable[[], int]) -> int:
        """Repetitions of ``work`` pieces that fit into the time left, from ``least`` to ``most``.

        ``pilot`` does some pieces and says how many; it is not called where there is no end.
        """
        if math.isinf(self.left):
            return most
        began = self._clock()
        pieces = pilot()
        seconds_each = (self._clock() - began) / pieces
        affordable = self.left / max(work * seconds_each, 1e-9)
        return min(most, max(least, int(affordable)))
