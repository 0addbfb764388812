"""The speedup of speculation on a real machine, on which scoring n rows takes T(n), not T(1).

Leviathan et al. (2023, theorem 3.8) assume that a forward pass over k + 1 tokens takes as long as over one. This holds
while reading the weights bounds the pass and the batch is small. Here T is a curve: measured (``outrider plan``), or
from a roofline (``outrider_lab.roofline``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from outrider.errors import ConfigError
from outrider_lab.theory import chain_tokens

Cost: TypeAlias = Callable[[float], float]
"""Seconds of one forward pass by the number of rows it scores."""


@dataclass(frozen=True)
class LatencyCurve:
    """T(n) through measured points: straight lines between them, the last line's slope beyond them."""

    points: Mapping[int, float]  # rows -> seconds

    def __post_init__(self) -> None:
        if not self.points or min(self.points) < 1 or min(self.points.values()) <= 0:
            raise ConfigError(f"points={dict(self.points)!r} is not a latency curve: give seconds for 1 and more rows")

    def __call__(self, rows: float) -> float:
        n = sorted(self.points)
        if rows <= n[-1] or len(n) == 1:
            return float(np.interp(rows, n, [self.points[i] for i in n]))
        slope = (self.points[n[-1]] - self.points[n[-2]]) / (n[-1] - n[-2])
        return self.points[n[-1]] + max(slope, 0.0) * (rows - n[-1])


def flat(seconds: float = 1.0) -> Cost:
    """The paper's assumption: any number of rows costs the same."""
    return lambda rows: seconds


@dataclass(frozen=True)
class DraftCost:
    """Cost of one step's drafting: ``per_step`` once, and ``per_token`` for each draft token of a request.

    ``per_token`` is a curve over the requests that draft together: a draft model runs once for all of them, and a table
    is read for each. Seconds.
    """

    per_step: float = 0.0
    per_token: Cost = lambda batch: 0.0

    def __call__(self, k: float, batch: int = 1) -> float:
        return self.per_step + k * self.per_token(batch)


def step_seconds(k: float, target: Cost, draft: DraftCost, *, batch: int = 1, overhead: float = 0.0) -> float:
    """One step of ``batch`` requests that draft k tokens each: T(batch (k + 1)) + drafting + overhead."""
    return target(batch * (k + 1)) + (draft(k, batch) if k > 0 else 0.0) + overhead


def measured_improvement(
    rates: Sequence[float], target: Cost, draft: DraftCost, *, batch: int = 1, overhead: float = 0.0
) -> float:
    """Theorem 3.8 with the machine's own costs: plain decoding's time per token over speculation's.

    E[tokens] (T(B) + o) / (T(B (K+1)) + D(K, B) + o), where K is the number of ``rates``, one for each depth (see
    ``chain_tokens``). All requests of the batch are assumed to have these rates.
    """
    k = len(rates)
    plain = step_seconds(0, target, draft, batch=batch, overhead=overhead)
    return chain_tokens(rates) * plain / step_seconds(k, target, draft, batch=batch, overhead=overhead)


def best_measured_k(
    rates: Sequence[float], target: Cost, draft: DraftCost, *, batch: int = 1, overhead: float = 0.0
) -> tuple[int, float]:
    """The K of 0 to ``len(rates)`` with the largest improvement, and that improvement; K = 0 is plain decoding."""
    gains = [
        measured_improvement(rates[:k], target, draft, batch=batch, overhead=overhead) for k in range(len(rates) + 1)
    ]
    best = int(np.argmax(gains))
    return best, gains[best]


def break_even_alpha(k: int, target: Cost, draft: DraftCost, *, batch: int = 1, overhead: float = 0.0) -> float | None:
    """The α at which k draft tokens a step neither gain nor lose; None if even α = 1 gains nothing.

    With the paper's flat cost and k = 1, it is α = c (corollary 3.9).
    """

    def gain(alpha: float) -> float:
        return measured_improvement([alpha] * k, target, draft, batch=batch, overhead=overhead) - 1

    if gain(1.0) <= 0:
        return None
    low, high = 0.0, 1.0  # the gain grows with α
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if gain(middle) < 0 else (low, middle)
    return high
