"""Saved rows on their way into a cache: threads read them, while the engine's steps go on."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from outrider.cache.protocol import KVCache
from outrider.cache.rows import as_slice, row_numbers
from outrider.cache.sessions.segments import Segment
from outrider.cache.sessions.store import SessionStore

__all__ = ["Arrival", "ArrivalReader"]

logger = logging.getLogger(__name__)

_THREADS = 2  # one copies and checks rows while another waits for the disk, or does the same on its own processor
_AHEAD = 16  # files that the system is asked for beforehand, so that the disk has something to do all the time

ArrayShapes = Sequence[tuple[tuple[int, ...], Any]]


class Arrival:
    """A sequence whose slot has room for rows that are read from files, in any order.

    ::

        rows        0 ........ held | .......... end
                    in the cache    | from files
    """

    def __init__(self, slot: int, held: int, end: int, segments: Sequence[Segment], state: Segment | None) -> None:
        """``state``: the recurrent state of ``end`` rows; None: the model has none."""
        self.slot, self.held, self.at, self.end = slot, held, end, end
        """Once all has been read, the rows before ``at`` are there: all, or those before a file that was damaged."""
        self.files = deque([*segments, *([] if state is None else [state])])
        """Those that no thread has begun to read."""
        self._unasked = deque(self.files)
        self.state = state
        self.arrays: Sequence[Any] | None = None
        """Of ``state``, once they were read."""
        self.readers = 0
        self.is_done = False
        self.is_cancelled = False
        self._changed = threading.Condition()
        self._writers = 0

    @property
    def is_whole(self) -> bool:
        """Whether all that was to come has come."""
        return self.at == self.end and (self.state is None or self.arrays is not None)

    def take(self) -> tuple[Segment | None, list[Segment]]:
        """The file to read next, and those that the system may read ahead from now on."""
        if not self.files:
            return None, []
        segment, ahead = self.files.popleft(), []
        while len(self._unasked) > max(0, len(self.files) - _AHEAD):
            ahead.append(self._unasked.popleft())
        return segment, ahead

    def fail(self, segment: Segment) -> list[Segment]:
        """A file's contents will not come, so those behind it are of no use; returns the files of rows among these."""
        if not segment.is_state:
            self.at = min(self.at, max(self.held, segment.start))
        left = [each for each in self.files if not each.is_state]
        self.files.clear()
        return left

    @contextmanager
    def writing(self) -> Iterator[bool]:
        """Tells whether rows may be written within; ``cancel`` waits for the end."""
        with self._changed:
            may = not self.is_cancelled
            self._writers += may
        try:
            yield may
        finally:
            with self._changed:
                self._writers -= may
                self._changed.notify_all()

    def cancel(self) -> None:
        """Write no further row: the slot will be another's."""
        with self._changed:
            self.is_cancelled = True
            self._changed.wait_for(lambda: not self._writers)


class ArrivalReader:
    """Reads arrivals in turns, a file each, so that a short conversation does not wait for a long one."""

    def __init__(self, store: SessionStore, cache: KVCache, rows: ArrayShapes, states: ArrayShapes) -> None:
        """``rows``: shape and dtype of a row of each array; ``states``: of each array of a state."""
        self._store, self._cache, self._rows, self._states = store, cache, rows, states
        self._lock = threading.Lock()
        self._waiting: deque[Arrival] = deque()
        self._threads = 0
        self._ended = threading.Event()

    def begin(self, arrival: Arrival) -> None:
        """Read an arrival on threads, which live as long as any is left."""
        with self._lock:
            self._waiting.append(arrival)
            while self._threads < _THREADS:
                self._threads += 1
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
                    self._threads -= 1
                    return
                arrival = self._waiting.popleft()
                if arrival.is_cancelled:
                    arrival.files.clear()
                segment, ahead = arrival.take()
                arrival.readers += 1
                if arrival.files:
                    self._waiting.append(arrival)
            for each in ahead:
                self._store.read_ahead(each)
            if segment is not None:
                self._try_to_read(arrival, segment)
            with self._lock:
                arrival.readers -= 1
                if not arrival.files and not arrival.readers:
                    arrival.is_done = True
                    self._ended.set()

    def _try_to_read(self, arrival: Arrival, segment: Segment) -> None:
        """Read a file, whose contents then are where they belong, unless the arrival fails."""
        try:
            if segment.is_state:
                arrival.arrays = self._store.read(segment, self._states)
            elif not self._read_rows(arrival, segment):
                for each in self._fail(arrival, segment):  # its request computes their rows too, and saves them again
                    self._store.forget(each)
        except Exception:  # memory is short, say: the request computes the rest
            logger.exception("a saved session could not be read, its tokens are read again")
            self._fail(arrival, segment)

    def _fail(self, arrival: Arrival, segment: Segment) -> list[Segment]:
        with self._lock:
            return arrival.fail(segment)

    def _read_rows(self, arrival: Arrival, segment: Segment) -> bool:
        """Read a file of rows; returns whether it could be used."""
        count = len(segment.tokens)
        parts = self._store.read(segment, [((count, *shape), dtype) for shape, dtype in self._rows])
        if parts is None:
            return False
        first, last = max(segment.start, arrival.held), min(segment.end, arrival.end)
        own = slice(first - segment.start, last - segment.start)
        with arrival.writing() as may:
            if may:
                rows = as_slice(row_numbers(self._cache, arrival.slot, first, last))
                self._cache.pool.write_rows(rows, [part[own] for part in parts])
        return True
