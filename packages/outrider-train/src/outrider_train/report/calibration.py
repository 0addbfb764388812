"""Calibration of a head's probabilities on held-out rows (used in ``drafters/heads/calibration.py``).

Every one of a row's ten best guesses is a sample: its probability, and whether it was the target's most likely token.
The best one and the others are fitted apart: one fit for both left three times the error in our measurements. Rows
count where all earlier guesses of a greedy chain are right, as a draft's node matters only if its parent was accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.drafters.heads.calibration import Calibration
from outrider_train.metrics import JudgedRows

_LEAST_ROWS = 100  # of a position with its own fit; other positions use the fit of the position before
_PRIOR = 1.0  # weight, in samples, of (1, 0)
_STEPS = 50  # of Newton's method
_BINS = 10
_FLATTEST = 0.05  # the least slope: keeps the order of guesses
_STEEPEST = 20.0  # the largest slope and offset


@dataclass(frozen=True)
class CalibrationReport:
    """The fit, and the expected calibration error of best guesses without it and with it, over all positions.

    ``after`` is cross-validated: each half of the documents with the fit of the other half.
    """

    calibration: Calibration
    before: float
    after: float


def calibrate(positions: Sequence[JudgedRows]) -> CalibrationReport | None:
    """Fit every draft position, nearest first; None with too few rows for the first."""
    if not positions or int(positions[0].reached.sum()) < _LEAST_ROWS:
        return None
    fits: list[tuple[float, float, float, float]] = []
    errors = []
    for rows in positions:
        if int(rows.reached.sum()) < _LEAST_ROWS:
            fits.append(fits[-1])
            continue
        scores, right = rows.scores[rows.reached].double(), _right(rows)[rows.reached]
        odd = rows.documents[rows.reached] % 2 == 1
        own = (*_fit(scores[:, :1], right[:, :1]), *_fit(scores[:, 1:], right[:, 1:]))
        fits.append((round(own[0], 4), round(own[1], 4), round(own[2], 4), round(own[3], 4)))
        crossed = scores[:, 0].exp()
        for side in (odd, ~odd):
            if bool(side.any()) and not bool(side.all()):
                crossed[side] = _applied(scores[side, 0], *_fit(scores[~side, :1], right[~side, :1]))
        found = [expected_error(chances, right[:, 0]) for chances in (scores[:, 0].exp(), crossed)]
        errors.append([len(scores), *(error * len(scores) for error in found)])
    count, before, after = torch.tensor(errors, dtype=torch.float64).sum(0).tolist()
    return CalibrationReport(tuple(fits), before / count, after / count)


def expected_error(chances: Tensor, hits: Tensor) -> float:
    """Expected calibration error in ten bins. ``chances``: probabilities [n]. ``hits``: bool [n]."""
    bins = (chances * _BINS).long().clamp(0, _BINS - 1)
    gaps = torch.zeros(_BINS, dtype=torch.float64).index_add_(0, bins, chances.double() - hits.double())
    return float(gaps.abs().sum() / max(1, len(chances)))


def _right(rows: JudgedRows) -> Tensor:
    """bool [n, guesses]: whether each guess is the target's most likely token."""
    return rows.ranks[:, None] == torch.arange(rows.scores.shape[1])


def _fit(scores: Tensor, right: Tensor) -> tuple[float, float]:
    """(a, b) of σ(a · logit(p) + b), by Newton's method with halved steps; (1, 0) without samples."""
    x = _logits(scores).flatten()
    y = right.flatten().double()
    point = torch.tensor([1.0, 0.0], dtype=torch.float64)
    best = _loss(point, x, y)
    for _ in range(_STEPS):
        p = torch.sigmoid(point[0] * x + point[1])
        off, weight = p - y, p * (1 - p)
        pull = point - torch.tensor([1.0, 0.0], dtype=torch.float64)
        slope = torch.stack([(off * x).sum(), off.sum()]) + _PRIOR * pull
        cross = (weight * x).sum()
        curve = torch.stack([torch.stack([(weight * x * x).sum(), cross]), torch.stack([cross, weight.sum()])])
        step = torch.linalg.solve(curve + _PRIOR * torch.eye(2, dtype=torch.float64), slope)
        while float(step.abs().max()) > 1e-9 and _loss(point - step, x, y) > best:
            step = step / 2
        point = point - step
        best = _loss(point, x, y)
        if float(step.abs().max()) < 1e-9:
            break
    a, b = point.tolist()
    return min(max(a, _FLATTEST), _STEEPEST), min(max(b, -_STEEPEST), _STEEPEST)


def _loss(point: Tensor, x: Tensor, y: Tensor) -> float:
    z = point[0] * x + point[1]
    pull = (point[0] - 1) ** 2 + point[1] ** 2
    return float((torch.nn.functional.softplus(z) - y * z).sum() + _PRIOR * pull / 2)


def _logits(scores: Tensor) -> Tensor:
    """Log-odds of log-probabilities."""
    sure = scores.clamp(max=-1e-9)
    return sure - torch.log(-torch.expm1(sure))


def _applied(scores: Tensor, a: float, b: float) -> Tensor:
    return torch.sigmoid(a * _logits(scores) + b)
