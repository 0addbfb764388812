"""Machines in simulated time; several replicas share the cores of one."""

from __future__ import annotations

import heapq
from collections.abc import Sequence


class Host:
    """Replicas on one machine. Each runs at a speed that depends on how many of them are busy.

    Virtual time V passes at the speed of a busy replica, so a step that begins at V and takes ``work`` ends at
    V + work, whoever comes or goes meanwhile (processor sharing).
    """

    def __init__(self, speeds: Sequence[float]) -> None:
        """``speeds[n - 1]``: of each replica when n are busy; 1 is that of one on its own."""
        self._speeds = speeds
        self._ends: list[tuple[float, int]] = []  # virtual time, replica
        self._virtual = 0.0
        self._at = 0.0
        self.version = 0  # of ``next_end``

    def start(self, replica: int, work: float, now: float) -> None:
        self._advance(now)
        heapq.heappush(self._ends, (self._virtual + work, replica))

    def cancel(self, replica: int, now: float) -> None:
        """A replica dies in the midst of its step, if it is in one."""
        self._advance(now)
        self._ends = [end for end in self._ends if end[1] != replica]
        heapq.heapify(self._ends)

    def finish(self, now: float) -> int:
        """The replica whose step ends now."""
        self._advance(now)
        self._virtual = max(self._virtual, self._ends[0][0])
        return heapq.heappop(self._ends)[1]

    def next_end(self) -> float | None:
        """Seconds at which the next step ends, if nobody comes or goes."""
        if not self._ends:
            return None
        return self._at + max(0.0, self._ends[0][0] - self._virtual) / self._speed()

    def _speed(self) -> float:
        return self._speeds[min(len(self._ends), len(self._speeds)) - 1]

    def _advance(self, now: float) -> None:
        if self._ends:
            self._virtual += (now - self._at) * self._speed()
        self._at = now
        self.version += 1


def shared_cores(replicas: int, cores: int) -> list[float]:
    """Speeds of replicas of one core each on a machine with ``cores`` cores."""
    return [min(1.0, cores / busy) for busy in range(1, replicas + 1)]
