"""The time of a session, shared between its parts: a part that does not fit asks less, and says so."""

from __future__ import annotations

import math
import time
from collections.abc import Callable


class Budget:
    """``seconds`` for parts that weigh ``weight`` together; None: as long as it takes.

    A part gets its share of the time that is left when it begins, so that time unused by one is the next one's.
    """

    def __init__(self, seconds: float | None, weight: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._weight = clock, weight
        self._end = math.inf if seconds is None else clock() + seconds
        self._part_end = self._end

    def begin(self, weight: float) -> None:
        """Begin a part; the parts' weights add up to the budget's."""
        left = max(0.0, self._end - self._clock())
        self._part_end = self._clock() + left * (weight / self._weight if self._weight > 0 else 1.0)
        self._weight = max(0.0, self._weight - weight)

    @property
    def left(self) -> float:
        """Seconds until the part's time is over; infinite without a budget."""
        return max(0.0, self._part_end - self._clock())

    def split(self, parts: int) -> Budget:
        """The rest of this part as the budget of ``parts`` pieces of one weight each."""
        return Budget(None if math.isinf(self.left) else self.left, parts, self._clock)
