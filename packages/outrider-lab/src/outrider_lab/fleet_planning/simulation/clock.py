"""Simulated time: future events, in order."""

from __future__ import annotations

import heapq
from collections.abc import Callable

Act = Callable[[float], None]
"""The action of an event, called with its time in seconds."""


class Clock:
    """A queue of events by time; events of the same time happen in the order in which they were planned."""

    def __init__(self) -> None:
        self._events: list[tuple[float, int, Act]] = []
        self._planned = 0

    def at(self, when: float, act: Act) -> None:
        self._planned += 1
        heapq.heappush(self._events, (when, self._planned, act))

    @property
    def next(self) -> float:
        """The time of the next event; infinity if there is none."""
        return self._events[0][0] if self._events else float("inf")

    def step(self) -> None:
        """Make the next event happen."""
        when, _, act = heapq.heappop(self._events)
        act(when)
