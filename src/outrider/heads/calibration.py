"""What a head's probabilities are worth: how often a guess of probability p turns out to be the target's.

At each draft position two numbers (a, b) make it ``σ(a · logit(p) + b)`` (Platt 1999). It rises with p, so the order of
guesses stays. Scores alone are calibrated, by which drafts are grown and granted; the distribution that tokens are
drawn from is never touched.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Calibration = tuple[tuple[float, float], ...]
"""(a, b) of each draft position, the nearest first; positions beyond are as the last. Empty: scores stay."""

_SURE = -1e-9  # the log-probability beyond which a guess is as good as certain
_LEAST = -80.0  # of an argument of σ, so that exp stays finite


def calibrated(scores: Sequence[float], calibration: Calibration, depth: int) -> list[float]:
    """Log-probabilities of guesses at a depth (0: the nearest), as the logs of what they are worth."""
    if not calibration:
        return list(scores)
    a, b = calibration[min(depth, len(calibration) - 1)]
    sure = np.minimum(np.asarray(scores, np.float64), _SURE)
    x = np.maximum(_LEAST, a * (sure - np.log(-np.expm1(sure))) + b)
    found: list[float] = (-np.log1p(np.exp(-x))).tolist()
    return found
