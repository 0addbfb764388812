"""Saved rows on their way into a cache: a thread reads them, while the engine's steps go on."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from outrider.cache.pool import Rows
from outrider.cache.protocol import KVCache
from outrider.cache.rows import row_numbers
from outrider.cache.sessions import SessionStore
from outrider.cache.sessions.segments import Segment

__all__ = ["Arrival", "ArrivalReader"]

logger = logging.getLogger(__name__)

ArrayShapes = Sequence[tuple[tuple[int, ...], Any]]


class Arrival:
    """A sequence whose slot has room for rows that are read from files.

    ::

        rows        0 ........ held | .......... at | .............. end
                    in the cache    | from files    | room for those to come
    """

    def __init__(self, slot: int, held: int, end: int, segments: Sequence[Segment], state: Segment | None) -> None:
        """``state``: the recurrent state of ``end`` rows; None: the model has none."""
        self.slot, self.held, self.at, self.end = slot, held, held, end
        self.segments = deque(segments)
        self.state = state
        self.arrays: Sequence[Any] | None = None
        """Of ``state``, once they were read."""
        self.is_done = False
        self.is_cancelled = False
        self.writing = threading.Lock()
        """Held while rows are written."""

    @property
    def is_whole(self) -> bool:
        """Whether all that was to come has come."""
        return self.at == self.end and (self.state is None or self.arrays is not None)

    def cancel(self) -> None:
        """Write no further row: the slot will be another's."""
        with self.writing:
            self.is_cancelled = True


class ArrivalReader:
    """Reads arrivals in turns, a file each, so that a short conversation does not wait for a long one."""

    def __init__(self, store: SessionStore, cache: KVCache, rows: ArrayShapes, states: ArrayShapes) -> None:
        """``rows``: shape and dtype of a row of each array; ``states``: of each array of a state."""
        self._store, self._cache, self._rows, self._states = store, cache, rows, states
        self._lock = threading.Lock()
        self._waiting: deque[Arrival] = deque()
        self._is_reading = False
        self._ended = threading.Event()

    def begin(self, arrival: Arrival) -> None:
        """Read an arrival on the thread, which lives as long as any is left."""
        with self._lock:
            self._waiting.append(arrival)
            if not self._is_reading:
                self._is_reading = True
                threading.Thread(target=self._read_all, name="outrider-arrivals", daemon=True).start()

    def wait(self, seconds: float) -> None:
        """Wait until an arrival has ended since ``clear``."""
        self._ended.wait(seconds)

    def clear(self) -> None:
        self._ended.clear()

    def _read_all(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._is_reading = False
                    return
                arrival = self._waiting.popleft()
            try:
                goes_on = self._read(arrival)
            except Exception:  # memory is short, say: the request computes the rest
                logger.exception("a saved session could not be read, its tokens are read again")
                goes_on = False
            if goes_on:
                with self._lock:
                    self._waiting.append(arrival)
            else:
                arrival.is_done = True
                self._ended.set()

    def _read(self, arrival: Arrival) -> bool:
        """Read an arrival's next file; returns whether there is another."""
        if arrival.is_cancelled:
            return False
        if arrival.at == arrival.end:
            if arrival.state is not None:
                arrival.arrays = self._store.read(arrival.state, self._states)
            return False
        segment = arrival.segments.popleft()
        parts = self._store.read(segment, [((len(segment.tokens), *shape), dtype) for shape, dtype in self._rows])
        if parts is None:
            for each in arrival.segments:  # its request computes their rows too, and saves them again
                self._store.forget(each)
            return False
        last, first = min(segment.end, arrival.end), arrival.at - segment.start
        with arrival.writing:
            if arrival.is_cancelled:
                return False
            rows = _as_slice(row_numbers(self._cache, arrival.slot, arrival.at, last))
            self._cache.pool.write_rows(rows, [part[first : first + last - arrival.at] for part in parts])
            arrival.at = last
        return arrival.at < arrival.end or arrival.state is not None


def _as_slice(rows: Rows) -> Rows:
    """Rows that follow one another as a slice, which is copied at once."""
    if not isinstance(rows, slice) and len(rows) and bool((np.diff(rows) == 1).all()):
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return rows
