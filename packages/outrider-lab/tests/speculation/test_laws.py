"""Values have the law of ``f`` alone, and these tests would notice if they had not."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

from outrider import speculate
from outrider.verify.noise import Noise, Purpose
from outrider.verify.verifiers import recursive
from outrider_lab.speculation import Density, Normal, judge
from outrider_lab.speculation.calls import BatchCalls
from outrider_lab.speculation.judge import Judge
from outrider_lab.speculation.laws import Prefix
from outrider_lab.speculation.walk import Walk
from tests.exactness.enumeration import Enumerating, law
from tests.speculation.cases import Batched, Chain, P, Q, Rows, walk

N = 1200
TWO_P: Rows = np.array([[0.7, 0.3], [0.2, 0.8]])
TWO_Q: Rows = np.array([[0.4, 0.6], [0.9, 0.1]])


def shifted(prefix: Prefix) -> Normal:
    """A guess at ``walk()`` that is one too high."""
    return Normal(0.9 * (prefix[-1] if prefix else 0.0) + 1.0, 1.0)


class Box:
    """Values between two numbers, all alike."""

    def __init__(self, low: float, high: float) -> None:
        self.low, self.high = low, high

    def sample(self, rng: np.random.Generator) -> float:
        return float(rng.uniform(self.low, self.high))

    def log_density(self, value: float) -> float:
        return -math.log(self.high - self.low) if self.low <= value < self.high else -math.inf


def transitions(values: list[int], rows: Rows) -> float:
    """Chi-square p-value of a Markov chain's values, by the value before."""
    counts = np.zeros_like(rows)
    for before, after in zip([0, *values], values, strict=False):
        counts[before, after] += 1
    expected = rows * counts.sum(axis=1, keepdims=True)
    return float(stats.chi2.sf(((counts - expected) ** 2 / expected).sum(), rows.shape[0] * (rows.shape[1] - 1)))


def innovations(values: list[float], mean: float = 0.9) -> float:
    """Kolmogorov-Smirnov p-value of a first-order autoregression: what the value before does not explain."""
    x = np.array([0.0, *values])
    return float(stats.kstest(x[1:] - mean * x[:-1], "norm").pvalue)


@pytest.mark.parametrize("draft_length", [1, 2, 3])
def test_probabilities_of_all_outcomes(draft_length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    use = Enumerating._use

    def noted(self: Enumerating, *key: object) -> None:
        if key[2] is not Purpose.DRAFT:  # a guess that was thrown away frees its noise
            use(self, *key)

    monkeypatch.setattr(Enumerating, "_use", noted)

    def run(noise: Noise) -> tuple[int, ...]:
        done = Walk(BatchCalls(Chain(TWO_P).batch), Judge("rejection", noise), Chain(TWO_Q), 3, draft_length)
        calls = done.run()
        try:
            call = next(calls)
            while True:
                call = calls.send(done.calls.wait(call))
        except StopIteration:
            return tuple(done.values)

    outcomes = law(run)
    assert len(outcomes) == len(TWO_P) ** 3
    for values, probability in outcomes.items():
        exact = np.prod([TWO_P[before, after] for before, after in zip((0, *values), values, strict=False)])
        assert probability == pytest.approx(exact, abs=1e-6)  # the draws' float32


@pytest.mark.parametrize("verifier", ["matching", "rejection"])
def test_probabilities(verifier: Any) -> None:
    run = speculate(Chain(), Chain(Q), N, verifier=verifier, seed=1, draft_length=3)
    assert transitions(run.values, P) > 0.01
    assert 0 < run.report.accepted < run.report.tested


def test_a_wrong_residual_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recursive, "residual", lambda p, q: p)
    run = speculate(Chain(), Chain(Q), N, verifier="rejection", seed=1, draft_length=3)
    assert transitions(run.values, P) < 1e-4


def test_guesses_without_a_law() -> None:
    run = speculate(Chain(), lambda prefix: 1, N, verifier="rejection", seed=2)
    assert transitions(run.values, P) > 0.01


def test_densities_by_rejection() -> None:
    run = speculate(Batched(walk()), shifted, N, seed=1)
    assert innovations(run.values) > 0.01
    assert run.report.alpha == pytest.approx(2 * stats.norm.cdf(-0.5), abs=0.05)  # 1 - total variation


def test_densities_by_matching() -> None:
    run = speculate(Batched(walk()), walk(0.8, 1.1), 600, seed=1, base=Normal(0, 6))
    assert innovations(run.values) > 0.01
    assert run.report.alpha is not None
    assert run.report.alpha > 0.6


@pytest.mark.parametrize(
    "g",
    [
        lambda prefix: Normal(0.0, 1.0),  # f's own law
        lambda prefix: Normal(0.0, 0.05),  # far too sure
        lambda prefix: Normal(0.0, 40.0),
        lambda prefix: Box(8.0, 9.0),  # next to no common support
        lambda prefix: None if len(prefix) % 2 else Normal(0.3, 1.0),
    ],
    ids=["same", "narrow", "wide", "elsewhere", "sometimes"],
)
def test_any_density_as_a_guess(g: Callable[[Prefix], Any]) -> None:
    run = speculate(Batched(lambda prefix: Normal(0.0, 1.0)), g, 600, seed=3)
    assert stats.kstest(run.values, "norm").pvalue > 0.01


def test_wrong_rules_for_densities_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def kept_always(self: Judge, p: Density, guess: Any, position: int) -> tuple[Any, bool]:
        return guess.value, True

    def replaced_from_p(self: Judge, p: Density, guess: Any, position: int) -> tuple[Any, bool]:
        ratio = np.exp(p.log_density(guess.value) - guess.law.log_density(guess.value))
        if self._noise.uniform(position, Purpose.ACCEPT) < ratio:
            return guess.value, True
        return p.sample(self._noise.generator(position, Purpose.RECOVER)), False

    for wrong in (kept_always, replaced_from_p):
        monkeypatch.setattr(Judge, "_by_density", wrong)
        assert innovations(speculate(Batched(walk()), shifted, N, seed=1).values) < 1e-3


def test_a_guess_and_its_replacement_share_no_noise() -> None:
    keys: list[tuple[int, Purpose]] = []

    class Noted(Noise):
        def generator(self, position: int, purpose: Purpose, node: int = 0) -> np.random.Generator:
            keys.append((position, purpose))
            return super().generator(position, purpose, node)

    judged = Judge("rejection", Noted(1))
    guess = judged.guess(Normal(0, 0.1), ())
    assert judged.decide(Normal(3, 0.1), guess, ())[1] is False
    assert keys == [(0, Purpose.DRAFT), (0, Purpose.RECOVER)]


def test_a_race_that_ends_too_early_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge, "_log_density", lambda *_, **__: 0.0)  # every point as good as any: the base's law
    run = speculate(Batched(walk()), None, 300, seed=1, base=Normal(0, 6), draft_length=0)
    assert innovations(run.values) < 1e-6


def test_the_cap_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """The law is that of ``f`` for any cap on acceptance, here one that refuses half of the best guesses."""
    monkeypatch.setattr(judge, "CAP", 0.5)
    run = speculate(Batched(walk()), walk(), N, seed=5)
    assert innovations(run.values) > 0.01
    assert run.report.alpha == pytest.approx(0.5, abs=0.05)


def test_counts_and_vectors() -> None:
    counted = speculate(Batched(lambda prefix: stats.poisson(3.0)), lambda prefix: stats.poisson(2.5), 300, seed=1)
    seen = np.bincount(np.minimum(counted.values, 8), minlength=9)
    expected = 300 * np.append(stats.poisson.pmf(range(8), 3.0), stats.poisson.sf(7, 3.0))
    assert stats.chisquare(seen, expected * seen.sum() / expected.sum()).pvalue > 0.01

    pairs = speculate(
        Batched(lambda prefix: Normal([0.0, 5.0], [1.0, 2.0])), lambda prefix: Normal([0.2, 4.8], 1.5), 400, seed=1
    )
    values = np.array(pairs.values)
    assert stats.kstest(values[:, 0], "norm").pvalue > 0.01
    assert stats.kstest((values[:, 1] - 5) / 2, "norm").pvalue > 0.01
