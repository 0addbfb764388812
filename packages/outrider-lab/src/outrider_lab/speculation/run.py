"""``speculate``: values of a slow conditional sampler, several for each wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any, Literal, get_args

from outrider.errors import ConfigError
from outrider.verify.noise import Noise, fresh_seed
from outrider_lab.speculation.calls import AsyncCalls, BatchCalls, Calls, PoolCalls, is_async
from outrider_lab.speculation.judge import Base, Judge, Rule
from outrider_lab.speculation.laws import Prefix
from outrider_lab.speculation.report import Result
from outrider_lab.speculation.walk import Walk

DRAFT_LENGTH = 4


def speculate(
    f: Any,
    g: Callable[[Prefix], Any] | None,
    length: int,
    *,
    start: Iterable[Any] = (),
    draft_length: int = DRAFT_LENGTH,
    verifier: Rule | None = None,
    base: Base | None = None,
    seed: int | None = None,
    stop: Callable[[Prefix], bool] | None = None,
    pool: Executor | Literal["threads", "processes"] = "threads",
) -> Result:
    """Sample ``length`` values one after another from ``f``, with ``g`` guessing ahead. The law is that of ``f`` alone.

    Stochastic speculative execution, section 6 of Leviathan et al. (2023). ``f`` runs for several guessed prefixes at
    once; a wrong guess costs work, never a value. Both functions must depend on nothing but the prefix.

    Args:
        f: the slow function, of a tuple of values. It returns the law of the next one: a vector of probabilities (the
            values are 0 to n - 1), a ``Density``, a frozen distribution of scipy.stats, or ``Point(value)``. If it has
            a method ``batch``, which takes a list of prefixes and returns a law for each; nothing else is called then.
        g: the cheap function, likewise, with the same support. It may also return a value without a law, or None where
            it has no guess. None: plain sampling.
        length: values to sample, fewer if ``stop`` ends them.
        start: values before the first.
        draft_length: guesses ahead, K; 0 is plain sampling.
        verifier: "matching" (the values are a function of ``f`` and ``seed`` alone), "rejection" (accepts most; the
            values depend on ``g`` too, their law does not) or "equality" (``f`` and ``g`` return values). By default
            probabilities are matched, and densities too if there is a ``base``; other densities are rejected.
        base: for matching densities: a ``Density``, or a function of the prefix that gives one, with which ``f``'s
            and ``g``'s laws share their randomness. They then need ``log_bound(base)``, as ``Normal`` has: the largest
            log-ratio of their density to that of ``base``.
        seed: an integer. The same seed gives the same values, whatever ``pool`` and (above 0) ``draft_length``.
        stop: asked after each value, with the prefix; True ends the run.
        pool: where ``f`` runs, if it has no ``batch``. Calls that are not needed are cancelled if they have not begun;
            others end by themselves, perhaps after this function has returned.

    Raises:
        ConfigError: an argument is not valid, or ``f`` and ``g`` do not fit together.
        NumericalError: ``f`` or ``g`` returned no distribution.
    """
    if is_async(f) or is_async(getattr(f, "batch", f)):
        raise ConfigError(f"f={f!r} is a coroutine function: use `await speculate_async(...)`")
    walk_of = _prepared(f, g, length, start, draft_length, verifier, base, seed, stop)
    if hasattr(f, "batch"):
        return _drive(walk_of(BatchCalls(f.batch)))
    if isinstance(pool, Executor):
        return _drive(walk_of(PoolCalls(f, pool)))
    if pool not in ("threads", "processes"):
        raise ConfigError(f"pool={pool!r} is not valid: use 'threads', 'processes' or an Executor")
    kind = ThreadPoolExecutor if pool == "threads" else ProcessPoolExecutor
    own = kind(max_workers=2 * (draft_length + 1))  # room for calls that nobody waits for any more
    try:
        return _drive(walk_of(PoolCalls(f, own)))
    finally:
        own.shutdown(wait=False, cancel_futures=True)


async def speculate_async(
    f: Callable[[Prefix], Any],
    g: Callable[[Prefix], Any] | None,
    length: int,
    *,
    start: Iterable[Any] = (),
    draft_length: int = DRAFT_LENGTH,
    verifier: Rule | None = None,
    base: Base | None = None,
    seed: int | None = None,
    stop: Callable[[Prefix], bool] | None = None,
    pool: Executor | None = None,
) -> Result:
    """``speculate`` on an event loop: tasks for a coroutine function ``f``, which are cancelled when not needed.

    An ordinary ``f`` runs in ``pool``, by default the loop's own threads. The values are those of ``speculate``.
    """
    calls = AsyncCalls(f, pool)
    walk = _prepared(f, g, length, start, draft_length, verifier, base, seed, stop)(calls)
    began = time.perf_counter()
    run = walk.run()
    try:
        call = next(run)
        while True:
            call = run.send(await calls.wait(call))
    except StopIteration:
        return Result.of(walk, time.perf_counter() - began)
    finally:
        walk.close()
        await asyncio.gather(*calls.tasks, return_exceptions=True)


def _drive(walk: Walk) -> Result:
    began = time.perf_counter()
    run = walk.run()
    try:
        call = next(run)
        while True:
            call = run.send(walk.calls.wait(call))
    except StopIteration:
        return Result.of(walk, time.perf_counter() - began)
    finally:
        walk.close()


def _prepared(
    f: Any,
    g: Any,
    length: int,
    start: Iterable[Any],
    draft_length: int,
    verifier: Rule | None,
    base: Base | None,
    seed: int | None,
    stop: Callable[[Prefix], bool] | None,
) -> Callable[[Calls], Walk]:
    """Check the arguments; only the executor of ``f`` is still open."""
    if not callable(f) and not hasattr(f, "batch"):
        raise ConfigError(f"f={f!r} is not valid: give a function of the prefix, or an object with batch(prefixes)")
    if g is not None and not callable(g):
        raise ConfigError(f"g={g!r} is not valid: give a function of the prefix, or None for no guesses")
    if not isinstance(length, int) or length < 1:
        raise ConfigError(f"length={length!r} is not valid: use 1 or more")
    if not isinstance(draft_length, int) or draft_length < 0:
        raise ConfigError(f"draft_length={draft_length!r} is not valid: use 0 or more")
    if verifier is not None and verifier not in get_args(Rule):
        raise ConfigError(f"verifier={verifier!r} is not valid: use one of {', '.join(get_args(Rule))}")
    judge = Judge(verifier, Noise(fresh_seed() if seed is None else seed), base)
    before, equality = tuple(start), verifier == "equality"
    return lambda calls: Walk(calls, judge, g, length, draft_length, before, stop, equality)
