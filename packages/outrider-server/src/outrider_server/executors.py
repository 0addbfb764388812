"""Work beside the event loop: bounded numbers of threads, bounded queues, and turns that go round the callers.

Ordinary requests share one executor. Bodies beyond ``LARGE`` have another: a text of megabytes delays only other large
texts. Images have a third, because one image keeps all processors busy for seconds. New grammars have a fourth, with
one thread for each process that compiles grammars: as many wait for it as there is room for sequences, and threads
take them from callers in turn. Answers are written on two threads, short answers on one and long
answers on the other, because every further thread competes with the event loop.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

from outrider.config.structured import StructuredOutput
from outrider.utils.child import Cancellation
from outrider.verify.grammar import GrammarCompiler
from outrider_server.http.context import CALLER
from outrider_server.http.errors import ApiError, unavailable

T = TypeVar("T")

SMALL = 16 << 10  # bytes of a body that is read on the loop itself, in a millisecond
LARGE = 128 << 10
GRAMMAR_THREADS = 2
SHORT_ANSWER = 16 << 10  # tokens and alternatives, which are written in a tenth of a second
ANY = 1 << 20  # answers that may wait to be written: all that there are


class Run(Protocol):
    """Does work on a thread of an executor."""

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]: ...


class Executors:
    """All executors of one server."""

    def __init__(self) -> None:
        self._ordinary = BoundedExecutor("reading requests", threads=4, queue_limit=1024, caller_limit=1024)
        self._large = BoundedExecutor("large requests", threads=2, queue_limit=32, caller_limit=16)
        self._images = BoundedExecutor("reading images", threads=2, queue_limit=64, caller_limit=16)
        self._grammars = BoundedExecutor(
            "compiling grammars", threads=GRAMMAR_THREADS, queue_limit=1024, caller_limit=1024
        )  # no more of a caller than it may have sequences: room is reserved for them before
        self._short_answers = BoundedExecutor("writing answers", threads=1, queue_limit=ANY, caller_limit=ANY)
        self._long_answers = BoundedExecutor("writing long answers", threads=1, queue_limit=ANY, caller_limit=ANY)
        self._compiling: dict[tuple[GrammarCompiler, StructuredOutput, str], _Shared] = {}

    async def run(self, work: Callable[[], T]) -> T:
        """``work()`` on a thread of the executor for requests of the current one's size."""
        executor = self._large if CALLER.get().body > LARGE else self._ordinary
        return await executor.run(work)

    async def read_images(self, work: Callable[[], T]) -> T:
        """``work()`` on the threads for images, which decode them and run the model's vision tower."""
        return await self._images.run(work)

    async def run_if_large(self, work: Callable[[], T]) -> T:
        """``work()`` here if the request is small enough for it to take no time, else on a thread."""
        return work() if CALLER.get().body <= SMALL else await self.run(work)

    async def write(self, work: Callable[[], T], size: int) -> T:
        """``work()``, which writes ``size`` tokens and alternatives of an answer, on a thread."""
        return await (self._short_answers if size <= SHORT_ANSWER else self._long_answers).run(work)

    async def compile(self, grammars: GrammarCompiler, form: StructuredOutput, domain: str) -> None:
        """Compile a grammar, unless it is known; requests for the same one wait for it together.

        It is stopped when all of them have gone. Raises any error of ``GrammarCompiler.constraint`` and of
        ``BoundedExecutor.run``.
        """
        if grammars.is_known(form, domain):
            return
        key = (grammars, form, domain)
        if key not in self._compiling:
            task = asyncio.ensure_future(self._grammars.run(lambda: grammars.constraint(form, domain)))
            self._compiling[key] = _Shared(task)
        shared = self._compiling[key]
        shared.waiting += 1
        try:
            await asyncio.shield(shared.task)
        finally:
            shared.waiting -= 1
            if not shared.waiting:
                shared.task.cancel()  # does nothing once it is done
                del self._compiling[key]

    def close(self) -> None:
        """End the threads that are idle, and the others after their work."""
        for executor in vars(self).values():
            if isinstance(executor, BoundedExecutor):
                executor.close()


@dataclass
class _Shared:
    """A task that any number of others wait for."""

    task: asyncio.Task[object]
    waiting: int = 0


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


class BoundedExecutor:
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
            ApiError: 429 or 503, with Retry-After, if the caller has too many jobs, or the queue is full.
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
        """The next job is of the caller with the fewest running jobs; among equals, the oldest."""
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
            except BaseException as raised:  # noqa: BLE001  passed on to the awaiting task
                error = raised
            if not job.loop.is_closed():
                job.loop.call_soon_threadsafe(partial(self._ended, job, result, error))
