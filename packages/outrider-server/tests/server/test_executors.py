"""Work beside the event loop: what takes long delays only its like, and callers take turns."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager

import pytest

from outrider_server.executors import LARGE, SHORT_ANSWER, BoundedExecutor, Executors
from outrider_server.http.context import CALLER, Caller
from outrider_server.http.errors import ApiError

SECONDS = 20.0


@asynccontextmanager
async def executors() -> AsyncIterator[tuple[Executors, threading.Event]]:
    """Executors, and an event that ends all work which waits for it."""
    made, go = Executors(), threading.Event()
    try:
        yield made, go
    finally:
        go.set()
        made.close()


async def passes(work: Awaitable[int]) -> None:
    assert await asyncio.wait_for(work, SECONDS) == 1


def test_long_answers_delay_no_short_one() -> None:
    async def run() -> None:
        async with executors() as (made, go):
            long = [asyncio.ensure_future(made.write(go.wait, SHORT_ANSWER + 1)) for _ in range(8)]
            await asyncio.sleep(0)
            await passes(made.write(lambda: 1, SHORT_ANSWER))
            go.set()
            await asyncio.gather(*long)

    asyncio.run(run())


def test_large_requests_delay_no_ordinary_one() -> None:
    async def run() -> None:
        async with executors() as (made, go):
            CALLER.set(Caller("one", LARGE + 1))
            large = [asyncio.ensure_future(made.run(go.wait)) for _ in range(8)]
            await asyncio.sleep(0)
            CALLER.set(Caller("one", LARGE))
            await passes(made.run(lambda: 1))
            go.set()
            await asyncio.gather(*large)

    asyncio.run(run())


def test_a_small_request_is_read_on_the_loop_itself() -> None:
    async def run() -> None:
        async with executors() as (made, _):
            assert await made.run_if_large(threading.get_ident) == threading.get_ident()
            CALLER.set(Caller("one", LARGE))
            assert await made.run_if_large(threading.get_ident) != threading.get_ident()

    asyncio.run(run())


def test_the_caller_with_the_fewest_running_jobs_is_next() -> None:
    order: list[str] = []

    async def run() -> None:
        go = threading.Event()
        executor = BoundedExecutor("tests", threads=2, queue_limit=99, caller_limit=99)

        async def ask(name: str, number: int) -> None:
            CALLER.set(Caller(name))
            await executor.run(go.wait if number == 0 else lambda: order.append(name))

        tasks = [asyncio.ensure_future(ask("busy", number)) for number in (0, 0, 1, 1)]
        await asyncio.sleep(0)
        tasks.append(asyncio.ensure_future(ask("other", 1)))
        await asyncio.sleep(0)
        go.set()
        await asyncio.wait_for(asyncio.gather(*tasks), SECONDS)
        executor.close()

    asyncio.run(run())
    assert order[0] == "other"


def test_a_full_queue_and_a_busy_caller_are_told_to_come_again() -> None:
    async def run() -> None:
        go = threading.Event()
        executor = BoundedExecutor("tests", threads=1, queue_limit=1, caller_limit=2)
        CALLER.set(Caller("one"))
        tasks = [asyncio.ensure_future(executor.run(go.wait)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(ApiError) as of_caller:
            await asyncio.wait_for(executor.run(go.wait), SECONDS)
        CALLER.set(Caller("two"))
        with pytest.raises(ApiError) as of_queue:
            await asyncio.wait_for(executor.run(go.wait), SECONDS)
        assert (of_caller.value.status, of_queue.value.status) == (429, 503)
        go.set()
        await asyncio.wait_for(asyncio.gather(*tasks), SECONDS)
        executor.close()

    asyncio.run(run())
