"""What tests want of NumPy that it has not in one call: logarithms of zero, softmax, normal numbers by a seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float32]


def log(values: ArrayLike) -> Floats:
    """float32; of zero it is -inf."""
    with np.errstate(divide="ignore"):
        logs: Floats = np.log(np.asarray(values, np.float64)).astype(np.float32)
    return logs


def softmax(logits: ArrayLike) -> NDArray[np.float64]:
    """Over the last axis."""
    x = np.asarray(logits, np.float64)
    weights: NDArray[np.float64] = np.exp(x - x.max(axis=-1, keepdims=True))
    normalised: NDArray[np.float64] = weights / weights.sum(axis=-1, keepdims=True)
    return normalised


def log_softmax(logits: ArrayLike) -> Floats:
    """Over the last axis."""
    return log(softmax(logits))


def randn(*shape: int, seed: int = 0, scale: float = 1.0) -> Floats:
    """Normal numbers, the same for a seed."""
    return np.random.default_rng(seed).normal(scale=scale, size=shape).astype(np.float32)


def full(count: int, value: float) -> Floats:
    """A row of one value."""
    return np.full(count, value, np.float32)


def floats(values: Sequence[Any] | NDArray[Any]) -> Floats:
    """float32."""
    return np.asarray(values, np.float32)
