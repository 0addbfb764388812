"""The native library's sampling: its logarithms, the same bits on every instruction set, and NumPy's results."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from outrider.config import SamplingParams
from outrider.native.context import NativeContext
from outrider.native.library import available_isas, library, native_library
from outrider.verify import shaping
from outrider.verify.native import NativeSampler
from outrider.verify.noise import numpy_gumbel

Row = NDArray[np.float32]

WIDTHS = st.one_of(st.integers(1, 40), st.sampled_from([255, 256, 257, 1000, 1024, 1025, 5003]))
seeds = st.integers(0, 2**32)


def keys(seed: int) -> bytes:
    return np.random.default_rng(seed).bytes(24)


def logits(seed: int, width: int) -> Row:
    """Random logits: smooth, or few different values (ties), or mostly impossible."""
    rng = np.random.default_rng(seed)
    row = rng.normal(size=width).astype(np.float32) * np.float32(rng.choice([0.01, 1.0, 4.0, 300.0]))
    if rng.random() < 0.4:
        row = np.round(row)
    if rng.random() < 0.4:
        row[rng.random(width) < rng.choice([0.1, 0.99])] = -np.inf
    row[rng.integers(width)] = rng.normal()
    return row


@st.composite
def options(draw: st.DrawFn) -> SamplingParams:
    return SamplingParams(
        temperature=draw(st.sampled_from([1.0, 0.7, 1.3, 1e-3, 50.0, 1e-300, 1e300])),
        top_k=draw(st.sampled_from([0, 0, 1, 2, 40, 1000, 1025])),
        top_p=draw(st.sampled_from([1.0, 1.0, 0.9, 0.5, 1e-9, 0.999, 1 - 2**-53])),
        min_p=draw(st.sampled_from([0.0, 0.0, 1e-4, 0.05, 1.0])),
    )


def dense_grid() -> Row:
    """2**13 numbers between any two powers of two from 2**-65 to 1, and every one of the largest 2**18."""
    octaves = [np.ldexp(1 + np.arange(2**13) / 2**13, e) for e in range(-65, 0)]
    return np.concatenate([*octaves, 1 - np.arange(1, 2**18) * 2.0**-24]).astype(np.float32)


def test_logarithms_are_within_the_stated_error(sampler: NativeSampler) -> None:
    v = dense_grid()
    found = sampler.gumbel_of(v)
    exact = -np.log(-np.log1p(-v.astype(np.float64)))
    last_place = np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)
    assert (np.abs(found - exact) <= 2.0**-22 + last_place).all()
    assert (np.abs(found - exact)[np.abs(exact) > 1] <= 4 * last_place[np.abs(exact) > 1]).all()
    assert -2.82 < found.min() < found.max() < 45.1


@given(seeds, st.sampled_from([1, 15, 16, 17, 256, 50_000]))
@settings(max_examples=20, deadline=None)
def test_noise_is_numpys_but_for_the_last_bits(sampler: NativeSampler, seed: int, width: int) -> None:
    row = sampler.gumbel(keys(seed), width)
    np.testing.assert_allclose(row, numpy_gumbel(keys(seed), width), rtol=5e-7, atol=2.0**-20)
    assert np.array_equal(row, sampler.gumbel(keys(seed), 2 * width + 3)[:width])


@given(seeds, WIDTHS, st.integers(0, 40))
def test_noise_of_some_tokens_is_that_of_their_row(sampler: NativeSampler, seed: int, width: int, count: int) -> None:
    tokens = np.random.default_rng(seed).integers(0, width, count)
    assert np.array_equal(sampler.gumbel_of_tokens(keys(seed), tokens), sampler.gumbel(keys(seed), width)[tokens])


@given(seeds, WIDTHS, options())
@settings(max_examples=400, deadline=None)
def test_a_draw_from_logits_is_that_of_the_whole_row(
    sampler: NativeSampler, seed: int, width: int, params: SamplingParams
) -> None:
    row = logits(seed, width)
    weights, largest = sampler.log_weights(row, params)
    scores = weights + sampler.gumbel(keys(seed), width)
    token = int(scores.argmax())
    assert largest == row.max()
    assert sampler.sample(row, params, keys(seed)) == (token, largest)
    assert sampler.draw(weights, keys(seed)) == (token, float(scores.max()))


@given(seeds, WIDTHS, options())
@settings(max_examples=400, deadline=None)
def test_log_weights_are_numpys(sampler: NativeSampler, seed: int, width: int, params: SamplingParams) -> None:
    row = logits(seed, width)
    assume(not _top_p_is_a_near_tie(row, params))
    expected = shaping.numpy_log_weights(row.copy(), params)
    assert np.array_equal(sampler.log_weights(row, params)[0], expected)


def _top_p_is_a_near_tie(row: Row, params: SamplingParams) -> bool:
    """Whether some set of largest weights has ``top_p`` of the mass but for what exp in float32 may be off."""
    by_rank = SamplingParams(temperature=params.temperature, top_k=params.top_k)
    weights = np.exp(shaping.numpy_log_weights(row.copy(), by_rank).astype(np.float64))
    mass = np.sort(weights)[::-1].cumsum() / weights.sum()
    return params.top_p < 1 and bool((np.abs(mass - params.top_p) < 1e-6).any())


@given(seeds, st.integers(2, 700), st.sampled_from([0.9, 0.3]))
@settings(max_examples=60, deadline=None)
def test_top_p_keeps_the_smallest_set_of_equal_weights(
    sampler: NativeSampler, seed: int, width: int, top_p: float
) -> None:
    """Two values only, whose sums are exact: the set is all of the larger, or everything."""
    row = np.where(np.random.default_rng(seed).random(width) < 0.5, 0.0, -20.0).astype(np.float32)
    row[0] = 0.0
    weights, _ = sampler.log_weights(row, SamplingParams(temperature=1.0, top_p=top_p))
    assert np.array_equal(weights > -np.inf, row == 0.0)


@pytest.mark.parametrize("width", [3, 16, 300, 2000])
@pytest.mark.parametrize("top_p", [0.5, 1 - 2**-53])
def test_equal_weights_are_all_kept(sampler: NativeSampler, width: int, top_p: float) -> None:
    row = np.full(width, 3.5, dtype=np.float32)
    for top_k in (0, 1, width - 1):
        params = SamplingParams(temperature=0.5, top_k=top_k, top_p=top_p)
        assert np.array_equal(sampler.log_weights(row, params)[0], np.zeros(width))


def test_top_p_counts_all_ties_that_top_k_keeps(sampler: NativeSampler) -> None:
    row = np.array([0.0, *[-1.0] * 5, -2.0], dtype=np.float32)  # weights 1, five times 0.37, 0.14
    weights, _ = sampler.log_weights(row, SamplingParams(temperature=1.0, top_k=2, top_p=0.5))
    assert np.isfinite(weights).tolist() == [True] * 6 + [False]


def test_top_p_that_is_met_exactly_is_enough(sampler: NativeSampler) -> None:
    row = np.array([0.0, -math.log(2), -math.log(2)], dtype=np.float32)
    params = SamplingParams(temperature=1.0, top_p=0.5)
    for weights in (sampler.log_weights(row, params)[0], shaping.numpy_log_weights(row, params)):
        assert np.isfinite(weights).tolist() == [True, False, False]


@given(seeds, st.integers(2, 600))
def test_equal_scores_go_to_the_first(sampler: NativeSampler, seed: int, width: int) -> None:
    row = logits(seed, width)
    row[np.random.default_rng(seed).integers(width, size=5)] = 1e9  # float32 cannot add noise to that
    assert sampler.draw(row, keys(seed)) == (int(row.argmax()), 1e9)


@given(seeds, st.integers(1, 4), WIDTHS, st.integers(0, 3))
@settings(max_examples=150, deadline=None)
def test_first_largest_is_numpys(sampler: NativeSampler, seed: int, n: int, width: int, padding: int) -> None:
    rng = np.random.default_rng(seed)
    rows = np.round(rng.normal(size=(n, width + padding)) * 2).astype(np.float32)
    for odd in (np.nan, np.inf, -np.inf):
        if rng.random() < 0.3:
            rows[rng.random(rows.shape) < rng.choice([0.001, 0.1, 1.0])] = odd
    view = rows[:, :width]
    found = sampler.first_largest(rows, width)
    index = [column for column, _ in found]
    assert index == view.argmax(axis=1).tolist()
    np.testing.assert_array_equal(np.array([value for _, value in found], dtype=np.float32), view[range(n), index])
    for strided in (np.asfortranarray(view), np.broadcast_to(rows[:1], rows.shape)):
        again = [column for column, _ in sampler.first_largest(strided, width)]
        assert again == strided[:, :width].argmax(axis=1).tolist()


@given(seeds, WIDTHS)
@settings(max_examples=100, deadline=None)
def test_a_draw_finds_what_is_not_a_number(sampler: NativeSampler, seed: int, width: int) -> None:
    rng = np.random.default_rng(seed)
    row = logits(seed, width)
    row[rng.integers(width)] = rng.choice([np.nan, np.inf])
    if rng.random() < 0.2:
        row[:] = -np.inf
    scores = row + sampler.gumbel(keys(seed), width)
    token, score = sampler.draw(row, keys(seed))
    assert token == scores.argmax()
    assert score == scores[token] or (math.isnan(score) and np.isnan(scores[token]))


@pytest.mark.skipif(library() is None, reason="no native library")
def test_every_instruction_set_has_the_same_bits() -> None:
    found = {}
    for isa in available_isas(native_library()):
        sampler = NativeSampler(NativeContext(1, isa))
        found[isa] = [sampler.gumbel(keys(0), 151_936).tobytes(), sampler.gumbel_of(dense_grid()[::7]).tobytes()]
        for seed in range(40):
            row = logits(seed, 4097)
            params = SamplingParams(temperature=0.8, top_k=(seed % 3) * 30, top_p=0.9 if seed % 2 else 1.0, min_p=0.001)
            found[isa] += [
                sampler.log_weights(row, params)[0].tobytes(),
                repr(sampler.sample(row, params, keys(seed))).encode(),
                *(part.tobytes() for part in sampler.most_likely(row[None], 9, 0.8)[:2]),
            ]
    assert all(results == found["portable"] for results in found.values())


@given(seeds, st.integers(1, 4), WIDTHS, st.integers(0, 3), st.integers(1, 70), st.sampled_from([1.0, 0.7, 3.0]))
@settings(max_examples=150, deadline=None)
def test_the_most_likely_are_numpys(
    sampler: NativeSampler, seed: int, n: int, width: int, padding: int, count: int, temperature: float
) -> None:
    """In descending order, the first of equals first, with the log-probabilities of a softmax in float64."""
    rows = np.stack([logits(seed + i, width + padding) for i in range(n)])
    rows[:, 0] = 0.5  # so that no row is impossible
    view = rows[:, :width]
    tokens, scores, found = sampler.most_likely(view, count, temperature)
    scaled = view.astype(np.float64) / temperature
    expected = scaled - np.logaddexp.reduce(scaled, axis=1, keepdims=True)
    assert len(tokens) == len(scores) == len(found) == n
    for i in range(n):
        order = [token for token in np.argsort(-view[i], kind="stable")[:count] if view[i, token] > -np.inf]
        assert tokens[i, : found[i]].tolist() == order
        tolerance = 1e-5 + 1e-6 * np.abs(view[i, order] - view[i].max()) / temperature
        assert (np.abs(scores[i, : found[i]] - expected[i, order]) <= tolerance).all()


@given(seeds, WIDTHS, st.sampled_from([np.nan, np.inf]))
@settings(max_examples=40, deadline=None)
def test_rows_that_are_not_finite_have_no_most_likely(
    sampler: NativeSampler, seed: int, width: int, odd: float
) -> None:
    rows = np.stack([logits(seed, width)] * 3)
    rows[1, seed % width] = odd
    rows[2] = -np.inf
    assert [count < 0 for count in sampler.most_likely(rows, 3)[2]] == [False, True, True]
