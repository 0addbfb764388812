"""What a head's probabilities are worth: how often a guess of probability p turns out to be the target's.

At each draft position four numbers (a, b, c, d) make it ``σ(a · logit(p) + b)`` for a row's best guess and
``σ(c · logit(p) + d)`` for the others (Platt 1999), but no more than for the best: one that leads is right more often
than its probability lets expect. The order of guesses stays. Scores alone are calibrated, by which drafts are grown and
granted; the distribution that tokens are drawn from is never touched.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

Calibration = tuple[tuple[float, float, float, float], ...]
"""(a, b, c, d) of each draft position, the nearest first; positions beyond are as the last. Empty: scores stay."""

_SURE = -1e-9  # the log-probability beyond which a guess is as good as certain
_LEAST = -80.0  # of an argument of σ, so that exp stays finite


def calibrated(rows: Sequence[Sequence[float]], calibration: Calibration, depth: int) -> list[list[float]]:
    """What guesses at a depth (0: the nearest) are worth, as logs, from their log-probabilities, a row's best first.

    ``calibration`` is not empty.
    """
    a, b, c, d = calibration[min(depth, len(calibration) - 1)]
    found = []
    for row in rows:
        best = _worth(row[0], a, b) if row else 0.0
        found.append([best, *(min(_worth(score, c, d), best) for score in row[1:])][: len(row)])
    return found


def _worth(score: float, slope: float, offset: float) -> float:
    """The log of σ(slope · logit(p) + offset), p's log being ``score``.

    One by one, without NumPy: between two passes of a head its code is not in the processor's caches, and the first
    call of it takes longer than a level's guesses here.
    """
    sure = min(score, _SURE)
    x = slope * (sure - math.log(-math.expm1(sure))) + offset
    return -math.log1p(math.exp(-max(_LEAST, x)))
