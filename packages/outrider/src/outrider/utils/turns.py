"""A first-in, first-out lock, which cannot be taken once the interpreter exits.

A daemon thread that is within a native library when the interpreter goes would end the process by a signal. So at exit,
when only daemon threads are left, every lock is taken for good, as soon as whoever holds it has done.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections import deque
from types import TracebackType

EXIT_SECONDS = 60.0  # that exit waits for whoever is at work, who may be stuck


class TurnLock:
    """Whoever has waited longest gets it next: with ``threading.Lock`` a thread that takes it in a loop keeps it."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._held = False
        self._waiting: deque[threading.Lock] = deque()  # each is released when it is its waiter's turn
        _locks.add(self)

    def __enter__(self) -> None:
        if not exits():
            self.take()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not exits():
            self.release()

    def take(self, timeout: float = -1) -> bool:
        """Wait for the lock, at most ``timeout`` seconds; return whether it was taken."""
        with self._guard:
            if not self._held:
                self._held = True
                return True
            turn = threading.Lock()
            turn.acquire()
            self._waiting.append(turn)
        came = False
        try:
            came = turn.acquire(timeout=timeout)
        finally:
            if not came:  # out of time, or interrupted: nobody must wait for this thread
                with self._guard:
                    given = turn not in self._waiting
                    if not given:
                        self._waiting.remove(turn)
                if given:
                    self.release()
        return came

    def take_if_free(self) -> bool:
        """Take it without waiting for anybody; whether that could be done. For finalizers, which run anywhere."""
        if not self._guard.acquire(blocking=False):
            return False
        free, self._held = not self._held, True
        self._guard.release()
        return free

    def release(self) -> None:
        """Give it to the next one."""
        with self._guard:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._held = False


def exits() -> bool:
    """Whether this thread is ending the interpreter, and the others wait for ever."""
    return threading.get_ident() in _exiting


_locks: weakref.WeakSet[TurnLock] = weakref.WeakSet()
_exiting: list[int] = []  # the thread that exits


@atexit.register  # when other threads than daemons have ended
def _hold_all() -> None:
    for lock in tuple(_locks):
        lock.take(EXIT_SECONDS)
    _exiting.append(threading.get_ident())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_locks.clear)  # threads are not copied, and nobody would release theirs
