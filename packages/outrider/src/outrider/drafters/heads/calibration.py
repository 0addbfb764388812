"""Calibration of a head's probabilities: how often a guess of probability p is the target's token.

Each draft position has four numbers (a, b, c, d) (Platt 1999). The best guess of a row has the calibrated probability
``σ(a · logit(p) + b)``; it has parameters of its own because it is right more often than another guess of equal
probability. Other guesses have ``σ(c · logit(p) + d)``, but at most that of the best guess, so that the order of
guesses stays. Only scores are calibrated, which decide how drafts grow. The distribution ``q`` stays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

Calibration = tuple[tuple[float, float, float, float], ...]
"""(a, b, c, d) of each draft position, the nearest first; later positions use the last entry. Empty: scores stay."""

_SURE = -1e-9  # log-probabilities are clipped to this, so that the logit is finite
_LEAST = -80.0  # the lowest argument of σ, so that exp stays finite


def calibrated(rows: Sequence[Sequence[float]], calibration: Calibration, depth: int) -> list[list[float]]:
    """Calibrated log-probabilities from log-probabilities, each row with its best guess first.

    ``depth``: 0 for the nearest draft position. ``calibration`` must not be empty.
    """
    a, b, c, d = calibration[min(depth, len(calibration) - 1)]
    found = []
    for row in rows:
        best = _worth(row[0], a, b) if row else 0.0
        found.append([best, *(min(_worth(score, c, d), best) for score in row[1:])][: len(row)])
    return found


def _worth(score: float, slope: float, offset: float) -> float:
    """log σ(slope · logit(p) + offset) for log p = ``score``.

    Scalar code: between two passes of a head NumPy's code is not in the processor's caches, and its first call takes
    longer than this function for all guesses of a level.
    """
    sure = min(score, _SURE)
    x = slope * (sure - math.log(-math.expm1(sure))) + offset
    return -math.log1p(math.exp(-max(_LEAST, x)))
