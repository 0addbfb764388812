"""The running requests of a simulated replica, in order of rank, and the progress of all requests."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from outrider_lab.fleet_planning.workload import Floats, Ints, Workload

Mask = NDArray[np.bool_]


@dataclass
class RequestProgress:
    """Progress of a workload's requests on all replicas. Arrays are [requests]."""

    workload: Workload
    produced: Ints  # tokens of the answer when the request last left a batch
    first: Floats  # time of the first token in seconds; NaN before it
    finished: Floats  # time of the last token in seconds; NaN before it

    @classmethod
    def of(cls, workload: Workload) -> RequestProgress:
        count = len(workload)
        return cls(workload, np.zeros(count, np.int64), np.full(count, np.nan), np.full(count, np.nan))


class Running:
    """Arrays with a place for each running request; the first ``count`` places are used.

    ::

        id       12  15  31      the workload's number of the request
        total   390 300 776      tokens of prompt and answer
        left     40  90  64      tokens of the answer still to generate
        pending   1   1 700      known tokens that are not in the cache yet; 1: decoding
        shared  256 200   0      tokens in the cache that other requests may share
        ready    .0  .0  .0      time at which a draft from the pool arrives

    The cache holds ``total - left - pending`` tokens of a request.
    """

    def __init__(self, places: int) -> None:
        self.count = 0
        self._ints = np.zeros((5, places), np.int64)
        self._ready = np.zeros(places)

    @property
    def id(self) -> Ints:
        return self._ints[0, : self.count]

    @property
    def total(self) -> Ints:
        return self._ints[1, : self.count]

    @property
    def left(self) -> Ints:
        return self._ints[2, : self.count]

    @property
    def pending(self) -> Ints:
        return self._ints[3, : self.count]

    @property
    def shared(self) -> Ints:
        return self._ints[4, : self.count]

    @property
    def ready(self) -> Floats:
        return self._ready[: self.count]

    @property
    def context(self) -> Ints:
        """Cached tokens of each request."""
        return self.total - self.left - self.pending

    def add(self, request: int, total: int, left: int, pending: int, shared: int) -> None:
        """Add a request at the last place."""
        self._ints[:, self.count] = request, total, left, pending, shared
        self._ready[self.count] = 0.0
        self.count += 1

    def keep(self, stay: Mask) -> None:
        """Remove the requests outside ``stay``; the order stays."""
        kept = int(np.count_nonzero(stay))
        self._ints[:, :kept] = self._ints[:, : self.count][:, stay]
        self._ready[:kept] = self._ready[: self.count][stay]
        self.count = kept


def share_budget(wanted: Ints, budget: int, room: int) -> Ints:
    """Draft tokens granted to each request, as by ``engine.scheduler``: a few to each in turn, by rank.

    Args:
        budget: tokens left of the step.
        room: tokens left in memory.
    """
    if wanted.sum() <= min(budget, room):
        return wanted
    given = np.zeros_like(wanted)
    wanting = [(place, int(wanted[place])) for place in np.flatnonzero(wanted > 0).tolist()]
    while wanting and budget > 0:
        turns = max(1, min(budget // len(wanting), *(more for _, more in wanting)))
        still: list[tuple[int, int]] = []
        for place, more in wanting[:budget]:
            taken = min(turns, max(0, room))
            given[place] += taken
            budget, room = budget - taken, room - taken
            if taken == turns < more:
                still.append((place, more - taken))
        wanting = still
    return given
