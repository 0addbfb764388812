"""Laws (distributions) that ``f`` and ``g`` may return: probabilities, a density, or one value."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from outrider.errors import NumericalError

Prefix: TypeAlias = tuple[Any, ...]
"""The values so far, ``start`` included."""

SUM_TOLERANCE = 1e-4
"""The allowed distance of a sum of probabilities from 1; more than the error of a float32 softmax of a large row."""


@runtime_checkable
class Density(Protocol):
    """A distribution over values of any kind. Frozen distributions of ``scipy.stats`` serve as well.

    Densities of ``f`` and ``g`` refer to the same measure: lengths, volumes, or counts (then they are probabilities).
    """

    def sample(self, rng: np.random.Generator) -> Any:
        """One value, drawn with no other randomness than ``rng``."""
        ...

    def log_density(self, value: Any) -> float:
        """The logarithm of the normalised density at ``value``; -inf where values are impossible."""
        ...


@dataclass(frozen=True)
class Point:
    """One certain value, of a deterministic ``f``, or of a guess without a distribution."""

    value: Any


@dataclass(frozen=True)
class Finite:
    """Probabilities of the values 0 to n - 1."""

    log_weights: NDArray[np.float32]  # float32 [n], the largest 0

    def __len__(self) -> int:
        return len(self.log_weights)


Law: TypeAlias = Finite | Density | Point


class Normal:
    """A normal distribution, of one number or of independent numbers (then values are arrays)."""

    def __init__(self, mean: ArrayLike, sd: ArrayLike) -> None:
        """``mean``, ``sd``: numbers, or arrays that broadcast.

        Raises:
            NumericalError: a mean is not finite, or a standard deviation is not a finite number above 0.
        """
        self.mean, self.sd = np.broadcast_arrays(np.asarray(mean, np.float64), np.asarray(sd, np.float64))
        if not np.isfinite(self.mean).all():
            raise NumericalError(f"mean={mean!r} is not valid: use finite numbers")
        if not (np.isfinite(self.sd) & (self.sd > 0)).all():
            raise NumericalError(f"sd={sd!r} is not valid: use finite numbers above 0")

    def sample(self, rng: np.random.Generator) -> float | NDArray[np.float64]:
        values: NDArray[np.float64] = self.mean + self.sd * rng.standard_normal(self.mean.shape)
        return values if values.shape else float(values)

    def log_density(self, value: ArrayLike) -> float:
        z = (np.asarray(value, np.float64) - self.mean) / self.sd
        return float((-0.5 * z * z - np.log(self.sd) - 0.5 * math.log(2 * math.pi)).sum())

    def log_bound(self, base: Density) -> float:
        """The largest log-ratio of this density to that of ``base``, another ``Normal`` (see ``speculate``).

        Raises:
            NumericalError: the ratio is unbounded, because ``base`` is no wider than this distribution.
        """
        if not isinstance(base, Normal):
            raise NumericalError(f"base={base!r} is not valid here: a Normal is bounded by another Normal")
        spare = base.sd**2 - self.sd**2
        if not (spare > 0).all():
            raise NumericalError(f"base with sd={base.sd} is too narrow for sd={self.sd}: give base a larger sd")
        return float((np.log(base.sd / self.sd) + 0.5 * (self.mean - base.mean) ** 2 / spare).sum())

    def __repr__(self) -> str:
        return f"Normal({self.mean}, {self.sd})"


class _Scipy:
    """A frozen distribution of ``scipy.stats``."""

    def __init__(self, frozen: Any) -> None:
        self._frozen = frozen
        self._log = frozen.logpdf if hasattr(frozen, "logpdf") else frozen.logpmf

    def sample(self, rng: np.random.Generator) -> Any:
        drawn = self._frozen.rvs(random_state=rng)
        return drawn.item() if np.ndim(drawn) == 0 and hasattr(drawn, "item") else drawn

    def log_density(self, value: Any) -> float:
        return float(self._log(value))


def law_of(returned: Any, who: str, position: int) -> Law:
    """The checked result of a call of ``f`` or ``g`` (named by ``who``) for ``position``.

    Raises:
        NumericalError: the probabilities are NaN, negative or do not sum to 1, or the result is no distribution.
    """
    if isinstance(returned, Point | Finite):
        return returned
    if hasattr(returned, "detach"):  # a tensor of torch, on any device
        returned = returned.detach().cpu().double().numpy()
    if isinstance(returned, np.ndarray | list | tuple) and np.ndim(returned) == 1:
        return _finite(np.asarray(returned, np.float64), f"{who} at position {position}")
    if isinstance(returned, Density):
        return returned
    if hasattr(returned, "rvs") and (hasattr(returned, "logpdf") or hasattr(returned, "logpmf")):
        return _Scipy(returned)
    if who == "g" and not isinstance(returned, np.ndarray):
        return Point(returned)
    raise NumericalError(
        f"{who} at position {position} returned {_shown(returned)}: return a vector of probabilities, a Density "
        "(sample and log_density) or Point(value), or ask for verifier='equality'"
    )


def _finite(p: NDArray[np.float64], where: str) -> Finite:
    if not len(p):
        raise NumericalError(f"{where} returned no probabilities: give at least one")
    wrong = np.flatnonzero(~(np.isfinite(p) & (p >= 0)))
    if len(wrong):
        i = int(wrong[0])
        raise NumericalError(f"{where}: the probability of value {i} is {p[i]}: use numbers from 0 to 1")
    if abs(p.sum() - 1) > SUM_TOLERANCE:
        raise NumericalError(f"{where}: the probabilities sum to {p.sum():.6g}: divide them by their sum")
    with np.errstate(divide="ignore"):
        return Finite(np.log(p / p.max()).astype(np.float32))


def _shown(value: Any) -> str:
    text = f"{value!r} ({type(value).__name__})"
    return text if len(text) <= 80 else text[:79] + "…"
