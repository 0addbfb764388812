"""What a head's probabilities are worth: how often a guess of probability p turns out to be the target's.

At each draft position four numbers (a, b, c, d) make it ``σ(a · logit(p) + b)`` for a row's best guess and
``σ(c · logit(p) + d)`` for the others (Platt 1999), but no more than for the best: one that leads is right more often
than its probability lets expect. The order of guesses stays. Scores alone are calibrated, by which drafts are grown and
granted; the distribution that tokens are drawn from is never touched.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Calibration = tuple[tuple[float, float, float, float], ...]
"""(a, b, c, d) of each draft position, the nearest first; positions beyond are as the last. Empty: scores stay."""

_SURE = -1e-9  # the log-probability beyond which a guess is as good as certain
_LEAST = -80.0  # of an argument of σ, so that exp stays finite


def calibrated(rows: Sequence[Sequence[float]], calibration: Calibration, depth: int) -> list[list[float]]:
    """What guesses at a depth (0: the nearest) are worth, as logs, from their log-probabilities, a row's best first.

    ``calibration`` is not empty.
    """
    a, b, c, d = calibration[min(depth, len(calibration) - 1)]
    counts = [len(row) for row in rows]
    sure = np.minimum(np.array([score for row in rows for score in row], np.float64), _SURE)
    starts = np.cumsum([0, *counts])
    own = np.repeat(starts[:-1], counts)  # of each guess: where its row's best one is
    best = own == np.arange(len(sure))
    x = np.where(best, a, c) * (sure - np.log(-np.expm1(sure))) + np.where(best, b, d)
    worth = -np.log1p(np.exp(-np.maximum(_LEAST, x)))
    worth = np.minimum(worth, worth[own])
    return [worth[start : start + count].tolist() for start, count in zip(starts, counts, strict=False)]
