"""Where and when ``f`` is called, what is thrown away, and what becomes of errors."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Executor, Future
from typing import Any

import pytest

from outrider import speculate, speculate_async
from outrider_lab.speculation import Point
from outrider_lab.speculation.laws import Prefix
from tests.speculation.cases import Batched, Chain, chain, near

WAIT = 20.0  # seconds after which a test has failed


def test_one_batch_has_every_drafted_prefix() -> None:
    f = Chain()
    run = speculate(f, chain, 20, seed=1, draft_length=4)  # a perfect guess
    assert f.calls == [5, 5, 5, 5]
    assert (run.report.rounds, run.report.f_calls, run.report.f_wasted) == (4, 20, 0)
    assert run.origins.count("accepted") == 16


def test_calls_run_beside_each_other() -> None:
    together = threading.Barrier(4)

    def f(prefix: Prefix) -> Any:
        together.wait(WAIT)
        return len(prefix)

    run = speculate(f, len, 8, draft_length=3, verifier="equality")
    assert run.values == list(range(8))
    assert run.report.rounds == 2


def test_f_runs_while_g_guesses() -> None:
    begun, guessed = threading.Event(), threading.Event()

    def f(prefix: Prefix) -> Any:
        begun.set()
        assert guessed.wait(WAIT)
        return len(prefix)

    def g(prefix: Prefix) -> Any:
        assert begun.wait(WAIT)
        guessed.set()
        return len(prefix)

    assert speculate(f, g, 2, draft_length=1, verifier="equality").values == [0, 1]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_two_slow_functions_run_in_parallel(seed: int) -> None:
    """Section 6 of the paper: f gives a distribution, g takes a value drawn from it, and both are slow."""
    both = threading.Barrier(2)

    def model(state: Prefix) -> Any:
        if not state:
            both.wait(WAIT)
            return [0.5, 0.5]
        if not both.broken and both.n_waiting:
            both.wait(WAIT)
        return Point(("world after", state[0]))

    run = speculate(model, lambda state: None if state else [0.6, 0.4], 2, draft_length=1, seed=seed)
    assert run.values == [run.values[0], ("world after", run.values[0])]
    assert run.report.rounds == (1 if run.origins[0] == "accepted" else 2)


class Lazy(Executor):
    """Runs a call when its result is asked for, so that a test sees which were never needed."""

    def __init__(self) -> None:
        self.ran: list[Prefix] = []
        self.futures: list[Future[Any]] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        pool = self

        class OnDemand(Future[Any]):
            def result(self, timeout: float | None = None) -> Any:
                pool.ran.append(args[1])
                return fn(*args, **kwargs)

        self.futures.append(OnDemand())
        return self.futures[-1]


def test_work_that_is_not_needed_is_cancelled() -> None:
    pool = Lazy()
    run = speculate(chain, lambda prefix: 1, 12, seed=1, draft_length=3, pool=pool)
    assert [len(prefix) for prefix in pool.ran] == list(range(12))
    cancelled = sum(future.cancelled() for future in pool.futures)
    assert cancelled == len(pool.futures) - 12 == run.report.f_wasted == run.report.f_cancelled > 0
    assert run.report.f_calls == 12 + cancelled


def test_tasks_that_are_not_needed_are_cancelled() -> None:
    ended: list[str] = []

    async def f(prefix: Prefix) -> Any:
        try:
            if prefix[-1:] == (9,):
                await asyncio.sleep(WAIT)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        return len(prefix)

    run = asyncio.run(speculate_async(f, lambda prefix: 9, 4, draft_length=1, verifier="equality"))
    assert run.values == [0, 1, 2, 3]
    assert run.report.f_cancelled == 3
    assert len(ended) <= 3  # one that had not begun says nothing


def test_an_error_for_a_wrong_guess_is_nobodys() -> None:
    def f(prefix: Prefix) -> Any:
        if 9 in prefix:
            raise ValueError("an impossible state")
        return len(prefix)

    async def f_async(prefix: Prefix) -> Any:
        return f(prefix)

    options: dict[str, Any] = {"draft_length": 2, "verifier": "equality"}
    assert speculate(f, lambda prefix: 9, 5, **options).values == [0, 1, 2, 3, 4]
    assert speculate(Batched(f), lambda prefix: 9, 5, **options).values == [0, 1, 2, 3, 4]
    assert asyncio.run(speculate_async(f_async, lambda prefix: 9, 5, **options)).values == [0, 1, 2, 3, 4]


def test_an_error_for_a_value_is_raised() -> None:
    def f(prefix: Prefix) -> Any:
        if len(prefix) == 3:
            raise ValueError("no more")
        return len(prefix)

    for slow in (f, Batched(f)):
        with pytest.raises(ValueError, match="no more"):
            speculate(slow, len, 5, verifier="equality")
    with pytest.raises(ValueError, match="no more"):
        asyncio.run(speculate_async(f, len, 5, verifier="equality"))


def test_an_invalid_law_for_a_wrong_guess_is_nobodys() -> None:
    def f(prefix: Prefix) -> Any:
        return [0.0, 1.0] if 0 not in prefix else [2.0, 3.0]

    assert speculate(Batched(f), lambda prefix: 0, 4, seed=1).values == [1, 1, 1, 1]


def test_calls_are_never_beyond_the_end() -> None:
    seen: list[int] = []

    def f(prefix: Prefix) -> Any:
        seen.append(len(prefix))
        return near(prefix)

    speculate(f, near, 6, seed=1, draft_length=10)
    assert max(seen) == 5
