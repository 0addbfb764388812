"""A saturating power law of the error, fitted to acceptance: 1 - α(N) = e + b N^-c, with e, b >= 0.

N counts fresh tokens of answers. Each draft position has its own e and b; all share the exponent c, which a few sizes
could not tell for each. For a given c, e and b follow from least squares weighed by each point's variance; c is the
best of a grid. Intervals are of a parametric bootstrap: α is drawn anew around the fitted curves, with the standard
deviation of its rows (binomial) or of what the curves miss, whichever is larger.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

EXPONENTS: Array = np.round(np.arange(0.05, 1.5001, 0.01), 2)
LEAST_SIZES = 3
DRAWS = 400


@dataclass(frozen=True)
class PowerLaw:
    """``floor`` (e) and ``scale`` (b): float64 [positions]; ``exponent``: c."""

    floor: Array
    scale: Array
    exponent: float

    def alpha(self, tokens: float) -> Array:
        """α at N ``tokens``: float64 [positions]."""
        error: Array = self.floor + self.scale * tokens**-self.exponent
        return 1 - np.clip(error, 0.0, 1.0)


@dataclass(frozen=True)
class Fit:
    """The law, and others that the noise of the points would have allowed."""

    law: PowerLaw
    others: tuple[PowerLaw, ...]

    def alpha(self, tokens: float) -> tuple[Array, Array, Array]:
        """α at N ``tokens``, and the ends of its 95% interval: float64 [positions] each."""
        found = np.stack([law.alpha(tokens) for law in self.others])
        low, high = np.quantile(found, [0.025, 0.975], axis=0)
        return self.law.alpha(tokens), low, high

    def tau(self, tokens: float) -> tuple[float, float, float]:
        """``chain_tau`` of these."""
        found = [chain_tau(law.alpha(tokens)) for law in self.others]
        low, high = np.quantile(found, [0.025, 0.975])
        return chain_tau(self.law.alpha(tokens)), float(low), float(high)

    def exponent(self) -> tuple[float, float, float]:
        """c, and the ends of its 95% interval."""
        low, high = np.quantile([law.exponent for law in self.others], [0.025, 0.975])
        return self.law.exponent, float(low), float(high)


def chain_tau(alpha: Sequence[float] | Array) -> float:
    """Tokens per run of the target of a chain whose positions are accepted with these chances, one after another."""
    return 1.0 + float(np.cumprod(alpha).sum())


def fit(tokens: Sequence[float], alpha: Sequence[Sequence[float]], rows: Sequence[float], seed: int = 0) -> Fit:
    """Fit α [sizes][positions] measured on so many ``rows`` each, after so many ``tokens``.

    Raises:
        ValueError: fewer than three sizes.
    """
    n, found = np.asarray(tokens, dtype=np.float64), np.asarray(alpha, dtype=np.float64)
    if len(set(tokens)) < LEAST_SIZES:
        raise ValueError(f"{len(set(tokens))} sizes cannot show a curve of three parameters: give at least 3")
    count = np.asarray(rows, dtype=np.float64)[:, None]
    inside = np.clip(found, 1 / (count + 2), 1 - 1 / (count + 2))
    variance = inside * (1 - inside) / count
    law = _best(n, found, variance)
    curve = np.stack([law.alpha(x) for x in n])
    spare = max(1, found.size - 2 * found.shape[1] - 1)
    missed = float((((found - curve) ** 2) / variance).sum()) / spare
    spread = np.sqrt(variance * max(1.0, missed))
    rng = np.random.default_rng(seed)
    others = [_best(n, curve + spread * rng.standard_normal(curve.shape), variance) for _ in range(DRAWS)]
    return Fit(law, tuple(others))


def _best(n: Array, alpha: Array, variance: Array) -> PowerLaw:
    """The exponent of ``EXPONENTS`` whose curves miss least."""
    weight, y = 1 / variance, 1 - alpha  # [sizes, positions]
    x = n[None, :, None] ** -EXPONENTS[:, None, None]  # [exponents, sizes, 1]
    w, wx, wxx = weight.sum(0), (weight * x).sum(1), (weight * x * x).sum(1)
    wy, wxy = (weight * y).sum(0), (weight * x * y).sum(1)
    determinant = np.maximum(w * wxx - wx * wx, 1e-300)
    scale = (w * wxy - wx * wy) / determinant
    floor = (wy - scale * wx) / w
    below = floor < 0  # then the floor is 0, and the scale is what fits best without one
    floor, scale = np.where(below, 0.0, floor), np.where(below, wxy / wxx, scale)
    flat = scale < 0
    floor, scale = np.where(flat, wy / w, floor), np.where(flat, 0.0, scale)
    missed = (weight * (y - floor[:, None] - scale[:, None] * x) ** 2).sum((1, 2))
    at = int(missed.argmin())
    return PowerLaw(floor[at], scale[at], float(EXPONENTS[at]))
