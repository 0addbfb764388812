"""Runs calls of ``f``: one call for all drafted prefixes, or many at once in a pool or an event loop."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from outrider.errors import ConfigError
from outrider_lab.speculation.laws import Prefix


@dataclass(eq=False)
class PrefixCall:
    """A call of ``f`` for one prefix, begun before it is certain to be needed."""

    prefix: Prefix
    round: int  # one more than the round of the last result used before the call
    work: Any = None  # a future, or the batch's result
    done: bool = False


@dataclass
class CallCounts:
    """Costs of calls."""

    started: int = 0
    dropped: int = 0  # calls whose prefixes did not come true
    cancelled: int = 0  # dropped calls that had not ended
    seconds: float = 0.0
    timed: int = 0  # calls, or batches, that ``seconds`` sums up


class Calls(Protocol):
    """An executor of calls of ``f``."""

    counts: CallCounts

    @property
    def eager(self) -> bool:
        """Whether a call begins with ``start``, so that starting it while others run saves time."""
        ...

    def start(self, prefix: Prefix, round_: int) -> PrefixCall: ...

    def drop(self, calls: Sequence[PrefixCall]) -> None:
        """Cancel calls that have not begun, and ignore the errors of all ``calls``."""
        ...

    def wait(self, call: PrefixCall) -> Any:
        """The result of ``f`` for a call, or its exception."""
        ...


@dataclass
class BatchCalls:
    """``f.batch(prefixes)``: all started calls run together when the first result is needed."""

    batch: Callable[[list[Prefix]], Sequence[Any]]
    counts: CallCounts = field(default_factory=CallCounts)
    eager: bool = False
    _waiting: list[PrefixCall] = field(default_factory=list)

    def start(self, prefix: Prefix, round_: int) -> PrefixCall:
        call = PrefixCall(prefix, round_)
        self._waiting.append(call)
        self.counts.started += 1
        return call

    def drop(self, calls: Sequence[PrefixCall]) -> None:
        self._waiting.clear()
        self.counts.dropped += len(calls)
        self.counts.cancelled += sum(not call.done for call in calls)

    def wait(self, call: PrefixCall) -> Any:
        if not call.done:
            self._run(call)
        return call.work

    def _run(self, needed: PrefixCall) -> None:
        try:
            self._evaluate(self._waiting)
        except Exception:
            # A prefix that does not come true may cause the error: only the first call is certain to be needed.
            if len(self._waiting) == 1:
                raise
            self._evaluate([needed])
        self._waiting = [call for call in self._waiting if not call.done]

    def _evaluate(self, calls: Sequence[PrefixCall]) -> None:
        began = time.perf_counter()
        results = self.batch([call.prefix for call in calls])
        self.counts.seconds += time.perf_counter() - began
        self.counts.timed += 1
        if len(results) != len(calls):
            raise ConfigError(f"f.batch gave {len(results)} results for {len(calls)} prefixes: give one for each")
        for call, result in zip(calls, results, strict=True):
            call.work, call.done = result, True


@dataclass
class PoolCalls:
    """A call of ``f`` for each prefix, in a pool of threads or processes."""

    f: Callable[[Prefix], Any]
    pool: Executor
    counts: CallCounts = field(default_factory=CallCounts)
    eager: bool = True

    def start(self, prefix: Prefix, round_: int) -> PrefixCall:
        self.counts.started += 1
        return PrefixCall(prefix, round_, self.pool.submit(timed, self.f, prefix))

    def drop(self, calls: Sequence[PrefixCall]) -> None:
        self.counts.dropped += len(calls)
        self.counts.cancelled += sum(call.work.cancel() for call in calls)

    def wait(self, call: PrefixCall) -> Any:
        result, seconds = call.work.result()
        self.counts.seconds += seconds
        self.counts.timed += 1
        return result


@dataclass
class AsyncCalls:
    """A task for each prefix; an ``f`` that is no coroutine function runs in the loop's pool of threads."""

    f: Callable[[Prefix], Any]
    pool: Executor | None = None
    counts: CallCounts = field(default_factory=CallCounts)
    eager: bool = True
    tasks: set[asyncio.Future[Any]] = field(default_factory=set)

    def start(self, prefix: Prefix, round_: int) -> PrefixCall:
        self.counts.started += 1
        work: asyncio.Future[Any]
        if is_async(self.f):
            work = asyncio.ensure_future(timed_async(self.f, prefix))
        else:
            work = asyncio.get_running_loop().run_in_executor(self.pool, partial(timed, self.f, prefix))
        self.tasks.add(work)
        work.add_done_callback(self._ended)
        return PrefixCall(prefix, round_, work)

    def _ended(self, work: asyncio.Future[Any]) -> None:
        self.tasks.discard(work)
        if not work.cancelled():
            work.exception()  # retrieved, so that the loop does not report the error of an unneeded call

    def drop(self, calls: Sequence[PrefixCall]) -> None:
        self.counts.dropped += len(calls)
        self.counts.cancelled += sum(call.work.cancel() for call in calls)

    async def wait(self, call: PrefixCall) -> Any:
        result, seconds = await call.work
        self.counts.seconds += seconds
        self.counts.timed += 1
        return result


def is_async(f: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(f) or inspect.iscoroutinefunction(getattr(f, "__call__", None))  # noqa: B004


def timed(f: Callable[[Prefix], Any], prefix: Prefix) -> tuple[Any, float]:
    """``f(prefix)`` and its seconds. A function of the module, so that it can be sent to processes."""
    began = time.perf_counter()
    return f(prefix), time.perf_counter() - began


async def timed_async(f: Callable[[Prefix], Any], prefix: Prefix) -> tuple[Any, float]:
    began = time.perf_counter()
    return await f(prefix), time.perf_counter() - began
