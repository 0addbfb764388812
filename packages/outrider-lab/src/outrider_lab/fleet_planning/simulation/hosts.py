"""Simulated machines, whose cores several replicas may share."""

from __future__ import annotations

import heapq
from collections.abc import Sequence


class Host:
    """Replicas on one machine. The speed of each depends on the number of busy ones.

    Virtual time V passes at the speed of a busy replica. A step that begins at V and takes ``work`` ends at V + work,
    independent of other steps that begin or end meanwhile (processor sharing).
    """

    def __init__(self, speeds: Sequence[float]) -> None:
        """``speeds[n - 1]``: the speed of each of n busy replicas, relative to a replica alone."""
        self._speeds = speeds
        self._ends: list[tuple[float, int]] = []  # virtual time, replica
        self._virtual = 0.0
        self._at = 0.0
        self.version = 0  # changes whenever ``next_end`` may change

    def start(self, replica: int, work: float, now: float) -> None:
        self._advance(now)
        heapq.heappush(self._ends, (self._virtual + work, replica))

    def cancel(self, replica: int, now: float) -> None:
        """Remove the step of a replica that dies, if it has one."""
        self._advance(now)
        self._ends = [end for end in self._ends if end[1] != replica]
        heapq.heapify(self._ends)

    def finish(self, now: float) -> int:
        """End the next step at ``now``, and return its replica."""
        self._advance(now)
        self._virtual = max(self._virtual, self._ends[0][0])
        return heapq.heappop(self._ends)[1]

    def next_end(self) -> float | None:
        """The time at which the next step ends, if none begins or is cancelled before; None without a step."""
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
    """``speeds`` of a ``Host`` with ``cores`` cores, for replicas with one thread each."""
    return [min(1.0, cores / busy) for busy in range(1, replicas + 1)]
