"""Noise: what a key promises (the same bits wherever and whenever it is asked for)."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import NumericalError
from outrider.native.processor import set_num_threads
from outrider.verify.noise import Noise, Purpose, fresh_seed
from tests.arrays import floats, full, randn

pytestmark = pytest.mark.usefixtures("each_sampler")

seeds = st.integers(-(2**80), 2**80)
purposes = st.sampled_from(Purpose)

KNOWN_ROW = [1.1150509, -0.3528295, 2.4139013, 0.022289]
KNOWN_UNIFORM = 0.2474254268784506


@given(seeds, st.integers(0, 2**40), purposes, st.integers(-1, 1000))
def test_a_number_is_a_function_of_its_key(seed: int, position: int, purpose: Purpose, node: int) -> None:
    used = Noise(seed)
    for other in range(20):  # more rows than are kept
        used.gumbel(other, 7)
        used.uniform(other, purpose, node)
    fresh = Noise(seed)
    assert np.array_equal(used.gumbel(position, 50, purpose, node), fresh.gumbel(position, 50, purpose, node))
    assert used.uniform(position, purpose, node) == fresh.uniform(position, purpose, node)


@pytest.mark.parametrize("vocab_size", [1, 5, 1000, 1024, 1025, 32_003, 49_152])
@pytest.mark.parametrize("purpose", Purpose)
def test_a_smaller_vocabulary_is_a_prefix_of_a_larger_one(vocab_size: int, purpose: Purpose) -> None:
    noise = Noise(3)
    row = noise.gumbel(11, vocab_size, purpose)
    assert row.dtype == np.float32
    assert row.shape == (vocab_size,)
    assert np.array_equal(row, noise.gumbel(11, 151_936, purpose)[:vocab_size])


@pytest.mark.parametrize("tokens", [[], [0], [49_151, 3, 3, 20_000], range(0, 49_152, 7)])
def test_some_tokens_have_the_noise_of_the_whole_row(tokens: Sequence[int]) -> None:
    noise, ids = Noise(-8), np.array(tokens, np.int64)
    assert np.array_equal(noise.gumbel_of(ids, 11), noise.gumbel(11, 49_152)[ids])


def test_bits_do_not_depend_on_threads() -> None:
    expected = Noise(5).gumbel(2, 151_936)
    set_num_threads(2)
    try:
        assert np.array_equal(Noise(5).gumbel(2, 151_936), expected)
    finally:
        set_num_threads(1)
    shared, rows = Noise(5), []
    threads = [threading.Thread(target=lambda: rows.append(shared.gumbel(2, 151_936))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(row, expected) for row in rows)


@given(seeds, seeds, st.integers(0, 2**40), st.integers(0, 2**40), purposes, purposes, st.integers(-1, 9))
def test_different_keys_give_different_rows(
    seed: int, other_seed: int, position: int, other_position: int, purpose: Purpose, other: Purpose, node: int
) -> None:
    row = Noise(seed).gumbel(position, 8, purpose, node)
    if seed != other_seed:
        assert not np.array_equal(row, Noise(other_seed).gumbel(position, 8, purpose, node))
    if position != other_position:
        assert not np.array_equal(row, Noise(seed).gumbel(other_position, 8, purpose, node))
    if purpose != other:
        assert not np.array_equal(row, Noise(seed).gumbel(position, 8, other, node))
    assert not np.array_equal(row, Noise(seed).gumbel(position, 8, purpose, node + 1))


@pytest.mark.parametrize("pair", [(0, 2**64), (1, 1 + 2**64), (-1, 2**64 - 1), (-1, 255), (127, -129), (128, -128)])
def test_seeds_are_not_reduced(pair: tuple[int, int]) -> None:
    a, b = (Noise(seed).gumbel(0, 8) for seed in pair)
    assert not np.array_equal(a, b)


def test_known_values_never_change() -> None:
    """A seed must mean the same output in every release: change these numbers only with a major version."""
    row = Noise(2023).gumbel(17, 4)
    assert row.tolist() == pytest.approx(KNOWN_ROW, abs=1e-6)
    assert Noise(2023).uniform(17, Purpose.ACCEPT, 2) == KNOWN_UNIFORM


def test_the_largest_numbers_are_as_fine_as_the_others() -> None:
    """A few in a thousand tokens have hashes too small to fill a float's bits, were it not for the second hash.

    Without it their uniform numbers would be odd multiples of 2**-33, which no other token's are likely to be.
    """
    row = np.concatenate([Noise(seed).gumbel(1, 49_152) for seed in range(20)]).astype(np.float64)
    uniform = -np.expm1(-np.exp(-row[row > 12]))
    assert len(uniform) > 3
    steps = uniform * 2.0**33
    assert max(abs(steps - (2 * np.floor(steps / 2) + 1))) > 0.1


def test_different_tokens_are_drawn_as_far_as_there_are_possible_ones() -> None:
    weights = floats([-math.inf, 0.0, -math.inf, 0.0, -math.inf])
    for position in range(20):
        drawn = Noise(3).draw_without_replacement(weights, 4, position)
        assert sorted(drawn) == [1, 3]
        assert drawn[0] == Noise(3).draw(weights, position)
    assert [Noise(3).draw_without_replacement(np.zeros(n, np.float32), 0, 1) for n in (5, 5000)] == [[], []]


@given(st.integers(0, 300))
def test_a_single_possible_token_is_drawn(token: int) -> None:
    weights = full(301, -math.inf)
    weights[token] = 0.0
    assert Noise(token).draw(weights, 4) == token


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_weights_that_are_not_numbers_are_refused(bad: float) -> None:
    weights = np.zeros(40, np.float32)
    weights[33] = bad
    with pytest.raises(NumericalError, match="position 6"):
        Noise(0).draw(weights, 6)


def test_no_possible_token_is_an_error() -> None:
    with pytest.raises(NumericalError, match="at least one must be possible"):
        Noise(0).draw(full(9, -math.inf), 0)


def test_impossible_tokens_are_never_drawn() -> None:
    weights = floats([-math.inf, 0.0, -math.inf, 0.0])
    noise = Noise(8)
    assert {noise.draw(weights, position) for position in range(200)} == {1, 3}


@given(seeds, st.sampled_from([1, 3, 63, 64, 65, 400, 5000]), st.integers(1, 9), st.floats(0, 1))
def test_draws_without_replacement_are_the_largest_scores(seed: int, vocab: int, count: int, kept: float) -> None:
    weights = randn(vocab, seed=seed % 2**32)
    weights[np.arange(vocab) / vocab > kept] = -math.inf
    noise = Noise(seed)
    possible = int(np.isfinite(weights).sum())
    order = np.argsort(-(weights + noise.gumbel(5, vocab)), kind="stable")
    assert noise.draw_without_replacement(weights, count, 5) == order[: min(count, possible)].tolist()


def test_kept_rows_are_bounded_and_reused() -> None:
    noise = Noise(1)
    first = noise.gumbel(0, 10)
    for position in range(1, 16):
        noise.gumbel(position, 10)
    assert noise.gumbel(0, 10) is first
    for position in range(16, 40):
        noise.gumbel(position, 10)
    assert noise.gumbel(0, 10) is not first


def test_fresh_seeds_differ_and_fit_63_bits() -> None:
    drawn = [fresh_seed() for _ in range(100)]
    assert len(set(drawn)) == 100
    assert all(0 <= seed < 2**63 for seed in drawn)
