"""Work beside the event loop: a bounded number of threads, a bounded queue, and turns that go round the callers."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from outrider.utils.child import Cancellation
from outrider_server.http.errors import ApiError, unavailable

T = TypeVar("T")


@dataclass(frozen=True)
class Caller:
    """Who sent the request that is being served, and how much of it there is."""

    name: str = ""  # tells callers apart, no more
    body: int = 0  # bytes


NOBODY = Caller()
CALLER: ContextVar[Caller] = ContextVar("caller", default=NOBODY)


@dataclass(eq=False)
class _Job:
    work: Callable[[], Any]
    caller: str
    done: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop
    cancellation: Cancellation = field(default_factory=Cancellation)

    def finish(self, result: Any, error: BaseException | None) -> None:
        if self.done.done():
            return  # cancelled
        if error is None:
            self.done.set_result(result)
        else:
            self.done.set_exception(error)


class Lane:
    """Threads for work of one kind. Its accounts are kept on the event loop; only ``work`` runs on a thread.

    A place is given back when the work has really ended: cancelling a task kills the child process it waits for
    (``utils.child``), and lets anything else finish. The threads are daemons, so none of them can delay an exit.
    """

    def __init__(self, name: str, *, threads: int, queue_limit: int, caller_limit: int) -> None:
        """``queue_limit``: jobs that may wait. ``caller_limit``: jobs of one caller that may run or wait."""
        self._name, self._queue_limit, self._caller_limit = name, queue_limit, caller_limit
        self._idle = threads
        self._waiting: list[_Job] = []
        self._running: Counter[str] = Counter()
        self._inbox: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._serve, name=f"outrider-{name}-{i}", daemon=True) for i in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    async def run(self, work: Callable[[], T]) -> T:
        """``work()`` on a thread, for the current ``CALLER``.

        Raises:
            ApiError: 429 or 503, with Retry-After, if the caller or the lane has too much to do already.
        """
        caller, loop = CALLER.get().name, asyncio.get_running_loop()
        own = self._running[caller] + sum(job.caller == caller for job in self._waiting)
        if own >= self._caller_limit:
            message = f"{own} of your requests run or wait in the queue for {self._name}: try again when one has ended"
            raise ApiError(429, message, code="queue_full", headers={"Retry-After": "1"})
        if not self._idle and len(self._waiting) >= self._queue_limit:
            raise unavailable(f"the queue for {self._name} is full: try again", 1, "queue_full")
        job = _Job(work, caller, loop.create_future(), loop)
        self._waiting.append(job)
        self._start_next()
        try:
            result: T = await job.done
        except asyncio.CancelledError:
            if job in self._waiting:
                self._waiting.remove(job)
            job.cancellation.cancel()
            raise
        return result

    def close(self) -> None:
        """End the threads that are idle, and the others after their work."""
        for _ in self._threads:
            self._inbox.put(None)

    def _start_next(self) -> None:
        """Whoever has least running goes first; then whoever came first."""
        if self._idle and self._waiting:
            job = min(self._waiting, key=lambda job: self._running[job.caller])
            self._waiting.remove(job)
            self._idle -= 1
            self._running[job.caller] += 1
            self._inbox.put(job)

    def _ended(self, job: _Job, result: Any, error: BaseException | None) -> None:
        self._idle += 1
        self._running[job.caller] -= 1
        if not self._running[job.caller]:
            del self._running[job.caller]
        job.finish(result, error)
        self._start_next()

    def _serve(self) -> None:
        while (job := self._inbox.get()) is not None:
            result, error = None, None
            try:
                with job.cancellation:
                    result = job.work()
            except BaseException as raised:  # noqa: BLE001  told to whoever waits
                error = raised
            if not job.loop.is_closed():
                job.loop.call_soon_threadsafe(partial(self._ended, job, result, error))
