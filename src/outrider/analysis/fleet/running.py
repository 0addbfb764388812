"""The requests that run on a simulated replica, in order of rank, and what became of all requests."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from outrider.analysis.fleet.workload import Floats, Ints, Workload

Mask = NDArray[np.bool_]


@dataclass
class Progress:
    """How far the requests of a workload are, wherever they are. Arrays are [requests]."""

    workload: Workload
    produced: Ints  # tokens of the answer
    first: Floats  # seconds at which the first token was there
    finished: Floats

    @classmethod
    def of(cls, workload: Workload) -> Progress:
        count = len(workload)
        return cls(workload, np.zeros(count, np.int64), np.full(count, np.nan), np.full(count, np.nan))


class Running:
    """Arrays with a place for each running request. Those behind ``count`` mean nothing.

    ::

        id       12  15  31   -      the workload's number of the request
        pending   1   1 700   -      tokens that are not in the cache yet; 1: it decodes
        left     40  90  64   -      tokens of the answer to come
        context 300 210 512   -      tokens in the cache
        own      44  10 512   -      of these, tokens that are nobody else's
        ready    .0  .0  .0   -      seconds at which a draft from elsewhere is there
    """

    def __init__(self, places: int) -> None:
        self.count = 0
        self._ints = np.zeros((5, places), np.int64)
        self._ready = np.zeros(places)

    def __len__(self) -> int:
        return self.count

    @property
    def id(self) -> Ints:
        return self._ints[0, : self.count]

    @property
    def pending(self) -> Ints:
        return self._ints[1, : self.count]

    @property
    def left(self) -> Ints:
        return self._ints[2, : self.count]

    @property
    def context(self) -> Ints:
        return self._ints[3, : self.count]

    @property
    def own(self) -> Ints:
        return self._ints[4, : self.count]

    @property
    def ready(self) -> Floats:
        return self._ready[: self.count]

    def add(self, request: int, pending: int, left: int, context: int, own: int) -> None:
        """A request gets the last place."""
        self._ints[:, self.count] = request, pending, left, context, own
        self._ready[self.count] = 0.0
        self.count += 1

    def keep(self, stay: Mask) -> None:
        """Take out the others; the order stays."""
        kept = int(stay.sum())
        self._ints[:, :kept] = self._ints[:, : self.count][:, stay]
        self._ready[:kept] = self._ready[: self.count][stay]
        self.count = kept


def share_budget(wanted: Ints, budget: int) -> Ints:
    """A token each in turn, until nobody wants more or nothing is left; the first in rank get the last ones."""
    if wanted.sum() <= budget:
        return wanted
    if budget <= 0:
        return np.zeros_like(wanted)
    level = int(wanted.max())
    while np.minimum(wanted, level).sum() > budget:
        level -= 1
    given = np.minimum(wanted, level)
    given[np.flatnonzero(wanted > level)[: budget - int(given.sum())]] += 1
    return given
