"""Noise: that it is noise. Seeds are fixed, so these tests give the same p-values every time."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from outrider.verify.noise import Noise, Purpose
from tests.arrays import Floats, log, randn, softmax
from tests.pairwise import slow_unless, spread

pytestmark = pytest.mark.usefixtures("each_sampler")

VOCAB = 49_152
LEVEL = 1e-3  # fixed seeds: a p-value below this is a defect, not bad luck


def uniforms(row: Floats) -> NDArray[np.float64]:
    """The ``v`` a row of Gumbel noise was made from."""
    result: NDArray[np.float64] = -np.expm1(-np.exp(-row.astype(np.float64)))
    return result


# NumPy's noise is the library's but for the last bits (test_native_sampling): the fast suite looks at what is the same
# for both through the library alone, and at rows, moments and weights through each.
library_first = pytest.mark.parametrize(
    "each_sampler", ["library", pytest.param("numpy", marks=pytest.mark.slow)], indirect=True
)


KEYS = [(seed, purpose) for seed in (0, 1, -1, 2**63 - 1) for purpose in Purpose]


@pytest.mark.parametrize(("seed", "purpose"), slow_unless(KEYS, spread(KEYS, factor=1)))
def test_rows_are_uniform(seed: int, purpose: Purpose) -> None:
    noise = Noise(seed)
    v = np.concatenate([uniforms(noise.gumbel(position, VOCAB, purpose)) for position in range(20)])
    assert stats.kstest(v, "uniform").pvalue > LEVEL
    assert stats.chisquare(np.histogram(v, bins=4096, range=(0, 1))[0]).pvalue > LEVEL


@library_first
def test_low_order_bits_are_uniform() -> None:
    v = np.concatenate([uniforms(Noise(9).gumbel(position, VOCAB)) for position in range(10)])
    v = v[v < 0.5]  # float32 resolves v to 2**-25 there
    assert stats.kstest((v * 2.0**14) % 1, "uniform").pvalue > LEVEL


@library_first
def test_the_winning_end_is_exponential() -> None:
    """The smallest of n exponentials, times n, is standard exponential: here the refined, 64-bit values."""
    noise = Noise(4)
    smallest = [math.exp(-float(noise.gumbel(position, VOCAB).max())) * VOCAB for position in range(1500)]
    assert stats.kstest(smallest, "expon").pvalue > LEVEL
    v = np.concatenate([uniforms(noise.gumbel(position, VOCAB)) for position in range(200)])
    assert stats.kstest(v[v < 2**-8] * 2**8, "uniform").pvalue > LEVEL


def test_gumbel_moments() -> None:
    g = np.concatenate([Noise(6).gumbel(position, VOCAB) for position in range(40)]).astype(np.float64)
    n = len(g)
    assert np.isfinite(g).all()
    assert abs(float(g.mean()) - np.euler_gamma) < 4 * math.pi / math.sqrt(6 * n)
    assert float(g.var()) == pytest.approx(math.pi**2 / 6, rel=0.01)
    assert float(stats.skew(g)) == pytest.approx(1.1395, abs=0.02)


@library_first
@pytest.mark.parametrize(
    ("a", "b"),
    [
        ({}, {"position": 1}),
        ({}, {"position": 2**32}),
        ({}, {"node": 1}),
        ({}, {"purpose": Purpose.RECOVER}),
        ({"purpose": Purpose.DRAFT}, {"purpose": Purpose.RECOVER}),
        ({}, {"seed": 1}),
        ({}, {"seed": 2**64}),
        ({}, {"shift": 1}),
        ({}, {"shift": 16}),
        ({}, {"shift": 1024}),
    ],
    ids=str,
)
def test_rows_of_different_keys_are_independent(a: dict[str, object], b: dict[str, object]) -> None:
    x, y = (np.concatenate([_row(position, **kw) for position in range(0, 40, 2)]) for kw in (a, b))  # type: ignore[arg-type]
    n = len(x)
    assert abs(np.corrcoef(x, y)[0, 1]) < 4 / math.sqrt(n)
    assert abs(np.corrcoef((x - 0.5) ** 2, (y - 0.5) ** 2)[0, 1]) < 4 / math.sqrt(n)
    joint = np.histogram2d(x, y, bins=32, range=((0, 1), (0, 1)))[0]
    assert stats.chisquare(joint.ravel()).pvalue > LEVEL


def _row(
    at: int, seed: int = 0, position: int = 0, node: int = 0, shift: int = 0, purpose: Purpose = Purpose.MATCH
) -> NDArray[np.float64]:
    row = Noise(seed).gumbel(at + position, VOCAB, purpose, node)
    return uniforms(np.roll(row, shift))


@library_first
@pytest.mark.parametrize("next_key", ["position", "seed", "node"])
def test_joint_draws_of_neighbours_are_independent(next_key: str) -> None:
    weights = log([0.4, 0.3, 0.2, 0.1])
    counts = np.zeros((4, 4))
    one = Noise(0)
    for i in range(4000):
        first = one.draw(weights, i, Purpose.DRAFT)
        if next_key == "position":
            second = one.draw(weights, i + 1, Purpose.DRAFT)
        elif next_key == "node":
            second = one.draw(weights, i, Purpose.DRAFT, node=1)
        else:
            second = Noise(1).draw(weights, i, Purpose.DRAFT)
        counts[first, second] += 1
    assert stats.chi2_contingency(counts).pvalue > LEVEL


@library_first
def test_every_seed_bit_flips_half_of_the_noise() -> None:
    base = uniforms(Noise(0).gumbel(0, 4096)) < 0.5
    flipped = [float((base != (uniforms(Noise(1 << bit).gumbel(0, 4096)) < 0.5)).mean()) for bit in range(70)]
    assert np.abs(np.array(flipped) - 0.5).max() < 5 * 0.5 / math.sqrt(4096)


def test_draws_follow_the_weights_down_to_small_probabilities() -> None:
    p = np.array([0.6, 0.25, 0.1, 0.04, 0.009, 8e-4, 1e-4, 1e-4])
    weights = log(p)
    noise = Noise(12)
    # Many races in one row: gumbel noise of 6,144 disjoint groups of eight tokens at each of 100 positions.
    rows = np.stack([noise.gumbel(position, VOCAB) for position in range(100)]).reshape(-1, 8)
    counts = np.bincount((rows + weights).argmax(axis=1), minlength=8)
    assert stats.chisquare(counts, p * counts.sum()).pvalue > LEVEL


@library_first
def test_draws_from_a_large_vocabulary_follow_the_weights() -> None:
    weights = randn(VOCAB, scale=2)
    p = softmax(weights.astype(np.float64))
    group = np.searchsorted(np.linspace(0, 1, 20)[1:-1], np.cumsum(p))  # 19 groups of about equal mass
    noise = Noise(13)
    counts = np.bincount([group[noise.draw(weights, i)] for i in range(2000)], minlength=19)
    assert stats.chisquare(counts, np.bincount(group, weights=p, minlength=19) * 2000).pvalue > LEVEL


@library_first
def test_uniform_is_uniform_and_independent_of_gumbel() -> None:
    noise = Noise(14)
    u = np.array([noise.uniform(position, Purpose.ACCEPT) for position in range(20_000)])
    assert stats.kstest(u, "uniform").pvalue > LEVEL
    assert abs(np.corrcoef(u[1:], u[:-1])[0, 1]) < 4 / math.sqrt(len(u))
    v = np.array([uniforms(noise.gumbel(position, 1, Purpose.ACCEPT))[0] for position in range(20_000)])
    assert abs(np.corrcoef(u, v)[0, 1]) < 4 / math.sqrt(len(u))
