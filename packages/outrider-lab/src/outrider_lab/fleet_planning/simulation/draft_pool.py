"""Simulated machines that only draft, for all replicas of a fleet."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from outrider_lab.fleet_planning.costs.machine import Machine
from outrider_lab.fleet_planning.simulation.clock import Clock

Asked = tuple[int, list[int]]
"""A replica's number, and its requests that need drafts."""


class DraftPool:
    """Drafting machines and their queue; a free machine drafts for all waiting requests as one batch."""

    def __init__(
        self, machines: int, machine: Machine, delay: float, clock: Clock, deliver: Callable[[Asked, float], None]
    ) -> None:
        """``delay``: seconds of a message in one direction. ``deliver``: called when drafts arrive at their replica."""
        self._delay, self._machine = delay, machine
        self._clock, self._deliver = clock, deliver
        self._idle = machines
        self._waiting: list[Asked] = []
        self.busy = 0.0  # seconds of all machines

    def ask(self, asked: Asked, now: float) -> None:
        """Send a replica's requests to the pool."""
        self._clock.at(now + self._delay, partial(self._arrive, asked))

    def _arrive(self, asked: Asked, now: float) -> None:
        self._waiting.append(asked)
        self._begin(now)

    def _begin(self, now: float) -> None:
        """Start batches on the free machines."""
        draft = self._machine.draft
        assert draft is not None
        while self._waiting and self._idle:
            share = max(1, -(-len(self._waiting) // self._idle))
            batch, self._waiting = self._waiting[:share], self._waiting[share:]
            self._idle -= 1
            lengths = self._machine.draft_lengths
            length = max(lengths[min(len(requests), len(lengths) - 1)] for _, requests in batch)
            seconds = max(1, length) * draft.level_seconds(sum(len(requests) for _, requests in batch))
            self.busy += seconds
            self._clock.at(now + seconds, partial(self._end, batch))

    def _end(self, batch: list[Asked], now: float) -> None:
        self._idle += 1
        for asked in batch:
            self._clock.at(now + self._delay, partial(self._deliver, asked))
        self._begin(now)
