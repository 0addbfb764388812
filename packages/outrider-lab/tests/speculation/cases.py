"""Slow functions and guesses whose laws are known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider_lab.speculation import Normal
from outrider_lab.speculation.laws import Prefix

Rows = NDArray[np.float64]

P: Rows = np.array([[0.5, 0.3, 0.2], [0.1, 0.6, 0.3], [0.25, 0.05, 0.7]])
Q: Rows = np.array([[0.2, 0.5, 0.3], [0.4, 0.3, 0.3], [0.3, 0.6, 0.1]])


class Chain:
    """A Markov chain: the next value's probabilities by the last value. ``batch`` takes many prefixes."""

    def __init__(self, rows: Rows = P) -> None:
        self.rows = rows
        self.calls: list[int] = []  # prefixes in each batch

    def __call__(self, prefix: Prefix) -> Rows:
        row: Rows = self.rows[prefix[-1] if prefix else 0]
        return row

    def batch(self, prefixes: list[Prefix]) -> list[Rows]:
        self.calls.append(len(prefixes))
        return [self(prefix) for prefix in prefixes]


def chain(prefix: Prefix) -> Rows:
    """The same without ``batch``, and at the top of a module, so that processes can be sent it."""
    return Chain()(prefix)


def near(prefix: Prefix) -> Rows:
    return Chain(Q)(prefix)


def walk(mean: float = 0.9, sd: float = 1.0) -> Callable[[Prefix], Normal]:
    """A first-order autoregression."""
    return lambda prefix: Normal(mean * (prefix[-1] if prefix else 0.0), sd)


class Batched:
    """``f`` with a ``batch`` that calls it for each prefix."""

    def __init__(self, f: Callable[[Prefix], Any]) -> None:
        self.f = f

    def batch(self, prefixes: list[Prefix]) -> list[Any]:
        return [self.f(prefix) for prefix in prefixes]
