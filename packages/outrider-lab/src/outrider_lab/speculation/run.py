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
    """Sample ``length`` values one after another from ``f``, with ``g`` guessing ahead. Their law is ``f``'s alone.

    This is stochastic speculative execution, section 6 of Leviathan et al. (2023). ``f`` runs for several guessed
    prefixes at once; a wrong guess costs work, never a value. Both functions must depend on the prefix alone.

    Args:
        f: the slow function, of a tuple of values. It returns the law of the next one: a vector of probabilities (the
            values are 0 to n - 1), a ``Density``, a frozen distribution of scipy.stats, or ``Point(value)``. A method
            ``batch`` of ``f`` takes a list of prefixes and returns a law for each; it is then called in place of ``f``.
        g: the cheap function, likewise, with the same support. It may also return a value without a law, or None if it
            has no guess. ``g`` None: plain sampling.
        length: number of values to sample; ``stop`` may end the run earlier.
        start: values before the first sampled value.
        draft_length: guesses ahead, K; 0 is plain sampling.
        verifier: "matching" (the values are a function of ``f`` and ``seed`` alone), "rejection" (accepts most; the
            values depend on ``g`` too, but their law does not) or "equality" (``f`` and ``g`` return values). The
            default is matching for probabilities, and for densities with a ``base``; for others it is rejection.
        base: for matching densities: a ``Density``, or a function of the prefix that gives one, with which ``f``'s
            and ``g``'s laws share their randomness. They then need ``log_bound(base)``, as ``Normal`` has: the largest
            log-ratio of their density to that of ``base``.
        seed: an integer. The same seed gives the same values, whatever ``pool`` and (above 0) ``draft_length``.
        stop: called after each value with the prefix; True ends the run.
        pool: where ``f`` runs, if it has no ``batch``. Unneeded calls are cancelled if they have not begun;
            the others run to their end, perhaps after this function has returned.

    Raises:
        ConfigError: an argument is not valid, or ``f`` and ``g`` do not fit together.
        NumericalError: ``f`` or ``g`` returned an invalid distribution.
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
    own = kind(max_workers=2 * (draft_length + 1))  # room for dropped calls that still run
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
    """``speculate`` on an event loop: tasks for a coroutine function ``f``, which are cancelled when unneeded.

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
    """Check the arguments, and return a function that makes the walk from the executor of ``f``."""
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
