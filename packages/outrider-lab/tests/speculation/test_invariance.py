"""With one seed the values are the same, however they were guessed and wherever ``f`` ran."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from outrider import speculate, speculate_async
from outrider_lab.speculation import Normal
from outrider_lab.speculation.laws import Prefix
from tests.speculation.cases import Batched, Chain, chain, near, walk

GUESSES: dict[str, Callable[[Prefix], Any]] = {
    "near": near,
    "the same": chain,
    "one value": lambda prefix: 2,
    "sometimes none": lambda prefix: None if len(prefix) % 3 == 0 else near(prefix),
    "without zeros' support": lambda prefix: [0.0, 0.5, 0.5],
}


@pytest.mark.parametrize("name", GUESSES)
@pytest.mark.parametrize("draft_length", [1, 3, 6])
def test_matching_does_not_depend_on_guesses(name: str, draft_length: int) -> None:
    plain = speculate(chain, None, 40, seed=7, draft_length=0)
    run = speculate(Chain(), GUESSES[name], 40, seed=7, draft_length=draft_length)
    assert run.values == plain.values
    assert plain.report.rounds == 40
    assert speculate(chain, None, 40, seed=8, draft_length=0).values != plain.values


@pytest.mark.parametrize("verifier", ["matching", "rejection"])
def test_it_does_not_matter_where_f_runs(verifier: Any) -> None:
    def in_a_pool(pool: Any, draft_length: int) -> list[int]:
        run = speculate(chain, near, 30, seed=7, verifier=verifier, draft_length=draft_length, pool=pool)
        return list(run.values)

    async def slowly(prefix: Prefix) -> Any:
        await asyncio.sleep(0.001 if len(prefix) % 2 else 0)
        return chain(prefix)

    wanted = speculate(Chain(), near, 30, seed=7, verifier=verifier, draft_length=2).values
    for draft_length in (1, 5):
        assert in_a_pool("threads", draft_length) == wanted
    with ThreadPoolExecutor(1) as one:
        assert in_a_pool(one, 3) == wanted
    for f in (slowly, chain):
        assert asyncio.run(speculate_async(f, near, 30, seed=7, verifier=verifier)).values == wanted


def test_processes() -> None:
    with ProcessPoolExecutor(1) as pool:
        run = speculate(chain, near, 12, seed=7, pool=pool)
    assert run.values == speculate(Chain(), near, 12, seed=7).values


def test_matching_of_densities() -> None:
    plain = speculate(walk(), None, 60, seed=7, base=Normal(0, 5), draft_length=0).values
    for g in (walk(), walk(0.2, 1.4), lambda prefix: 0.0):
        run = speculate(Batched(walk()), g, 60, seed=7, base=lambda prefix: Normal(0, 5), draft_length=3)
        assert run.values == plain


def test_rejection_of_densities_does_not_depend_on_length() -> None:
    values = [
        speculate(Batched(walk()), walk(0.7, 1.3), 60, seed=7, draft_length=draft_length).values
        for draft_length in (1, 2, 7)
    ]
    assert values[0] == values[1] == values[2]


def test_deterministic_functions() -> None:
    def f(prefix: Prefix) -> Any:
        return np.array([len(prefix), prefix[-1][0] * 7 % 11])

    def g(prefix: Prefix) -> Any:
        return f(prefix) if len(prefix) % 4 else np.array([0, 0])

    start = [np.array([0, 3])]
    plain = speculate(f, None, 30, start=start, verifier="equality")
    run = speculate(f, g, 30, start=start, verifier="equality")
    assert np.array_equal(run.values, plain.values)
    assert run.report.alpha == pytest.approx(0.75, abs=0.1)
    assert run.report.rounds < 12


def test_a_stop_ends_the_values() -> None:
    plain = speculate(Chain(), None, 40, seed=7, draft_length=0).values
    until = plain.index(2) + 1
    run = speculate(Chain(), near, 40, seed=7, stop=lambda prefix: prefix[-1] == 2)
    assert run.values == plain[:until]


def test_a_seed_is_made_and_told() -> None:
    run = speculate(Chain(), near, 20)
    assert speculate(Chain(), near, 20, seed=run.seed).values == run.values
