"""Where the server does what may take long: never on the event loop, and never where it keeps others waiting.

Ordinary requests share a lane. Bodies beyond ``LARGE`` have another, so that a text of megabytes holds up only its
like. Images have a third, as one of them keeps all processors busy for seconds. New grammars have a
fourth, as many threads as there are processes that try them. Answers are written on two
threads, short ones on one and long ones on the other: every thread more is one more for the loop to wait for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from outrider.config.structured import StructuredOutput
from outrider.grammar import GrammarCompiler
from outrider_server.http.lanes import CALLER, Lane

T = TypeVar("T")

SMALL = 16 << 10  # bytes of a body that is read on the loop itself, in a millisecond
LARGE = 128 << 10
GRAMMAR_THREADS = 2
SHORT_ANSWER = 16 << 10  # tokens and alternatives, which are written in a tenth of a second
ANSWERS = 1 << 20  # that may wait to be written: all that there are


class Run(Protocol):
    """Does work on a thread of some lane."""

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]: ...


class OffLoop:
    """The lanes of one server."""

    def __init__(self) -> None:
        self._ordinary = Lane("reading requests", threads=4, queue_limit=1024, caller_limit=1024)
        self._large = Lane("large requests", threads=2, queue_limit=32, caller_limit=16)
        self._images = Lane("reading images", threads=2, queue_limit=64, caller_limit=16)
        self._grammars = Lane("compiling grammars", threads=GRAMMAR_THREADS, queue_limit=16, caller_limit=8)
        self._short_answers = Lane("writing answers", threads=1, queue_limit=ANSWERS, caller_limit=ANSWERS)
        self._long_answers = Lane("writing long answers", threads=1, queue_limit=ANSWERS, caller_limit=ANSWERS)
        self._compiling: dict[tuple[GrammarCompiler, StructuredOutput, str], _Shared] = {}

    async def run(self, work: Callable[[], T]) -> T:
        """``work()`` on a thread of the lane that suits the current request's size."""
        lane = self._large if CALLER.get().body > LARGE else self._ordinary
        return await lane.run(work)

    async def read_images(self, work: Callable[[], T]) -> T:
        """``work()``, which decodes images and runs what sees them, on the thread for that."""
        return await self._images.run(work)

    async def run_if_large(self, work: Callable[[], T]) -> T:
        """``work()`` here if the request is small enough for it to take no time, else on a thread."""
        return work() if CALLER.get().body <= SMALL else await self.run(work)

    async def write(self, work: Callable[[], T], size: int) -> T:
        """``work()``, which writes ``size`` tokens and alternatives of an answer, on a thread."""
        return await (self._short_answers if size <= SHORT_ANSWER else self._long_answers).run(work)

    async def compile(self, grammars: GrammarCompiler, form: StructuredOutput, domain: str) -> None:
        """Compile a grammar, unless it is known; requests for the same one wait for it together.

        It is stopped when all of them have gone. Raises what ``GrammarCompiler.constraint`` and ``Lane.run`` raise.
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
        for lane in (
            self._ordinary,
            self._large,
            self._images,
            self._grammars,
            self._short_answers,
            self._long_answers,
        ):
            lane.close()


@dataclass
class _Shared:
    """A task that any number of others wait for."""

    task: asyncio.Task[object]
    waiting: int = 0
