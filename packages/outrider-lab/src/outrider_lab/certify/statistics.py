"""Tests of frequencies: chi-square, the total variation that it detects, and correction for many tests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy import stats

POWER = 0.9
"""The probability with which a deviation that is called detectable is found."""
SIGNIFICANCE = 1e-3
"""The probability that some test of a session fails without a fault, split between its tests (Bonferroni)."""


@dataclass(frozen=True)
class Fit:
    """Observed against expected frequencies."""

    p_value: float
    total_variation: float  # between the two, as observed
    samples: int
    bins: int

    def fails(self, tests: int) -> bool:
        """Whether the p-value is below the level of one of ``tests`` tests (Bonferroni's correction)."""
        return self.p_value < SIGNIFICANCE / tests

    def detectable(self, tests: int) -> float:
        """The total variation between the sampled and the expected distribution that is detected with ``POWER``.

        It is computed for the deviation that is hardest to detect, spread evenly over equal bins. The chi-square
        statistic is then non-central with λ = 4 n TV².
        """
        if self.bins < 2:
            return 1.0
        return min(1.0, math.sqrt(_detectable_noncentrality(self.bins, tests) / (4 * self.samples)))


@cache
def _detectable_noncentrality(bins: int, tests: int) -> float:
    """The least λ at which chi-square over ``bins`` fails with ``POWER``, as one of ``tests`` tests."""
    limit = stats.chi2.isf(SIGNIFICANCE / tests, bins - 1)
    low, high = 0.0, 1e6
    for _ in range(40):
        middle = (low + high) / 2
        enough = stats.ncx2.sf(limit, bins - 1, middle) >= POWER if middle > 0 else False
        low, high = (low, middle) if enough else (middle, high)
    return high


def detectable_rate(compared: int) -> float:
    """The rate of a fault that appears in at least one of ``compared`` results with probability ``POWER``."""
    return 1 - (1 - POWER) ** (1 / compared) if compared else 1.0


def chi_square(counts: Sequence[float] | NDArray[np.float64], expected: Sequence[float] | NDArray[np.float64]) -> Fit:
    """Pearson's test of ``counts`` against probabilities ``expected``; bins that expect fewer than five are joined.

    An observation of probability 0 has the p-value 0.
    """
    seen, p = np.asarray(counts, np.float64), np.asarray(expected, np.float64)
    n = seen.sum()
    if seen[p <= 0].any():
        return Fit(0.0, float(np.abs(seen / n - p).sum() / 2), int(n), int((p > 0).sum()))
    common = p * n >= 5
    observed = np.append(seen[common], seen[~common].sum())
    wanted = np.append(p[common], max(0.0, 1 - p[common].sum())) * n
    kept = wanted > 1e-9 * n
    if kept.sum() < 2:
        return Fit(1.0, 0.0, int(n), 1)
    wanted = wanted[kept] * (observed[kept].sum() / wanted[kept].sum())
    p_value = float(stats.chisquare(observed[kept], wanted).pvalue)
    return Fit(p_value, float(np.abs(seen / n - p).sum() / 2), int(n), int(kept.sum()))
