"""Simulated time: future events, in order."""

from __future__ import annotations

import heapq
from collections.abc import Callable

Act = Callable[[float], None]
"""What happens; it is told the time."""


class Clock:
    """Things happen at their time; those of one time in the order in which they were planned."""

    def __init__(self) -> None:
        self._events: list[tuple[float, int, Act]] = []
        self._planned = 0

    def at(self, when: float, act: Act) -> None:
        self._planned += 1
        heapq.heappush(self._events, (when, self._planned, act))

    @property
    def next(self) -> float:
        """Seconds at which the next thing happens."""
        return self._events[0][0] if self._events else float("inf")

    def step(self) -> None:
        """Have the next thing happen."""
        when, _, act = heapq.heappop(self._events)
        act(when)
