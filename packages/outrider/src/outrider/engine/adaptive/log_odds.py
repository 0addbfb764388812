"""How far off a predicted probability is: one number, learned from trials."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_FARTHEST = 4.0  # log-odds: 0.5 becomes 0.98, or 0.02


@dataclass(slots=True)
class Correction:
    """What is added to the log-odds of predictions, and how uncertain that is.

    ::

        log-odds of p = log(p / (1 - p)) = log-odds of the prediction + mean

    ``mean`` is normal with ``variance`` beforehand; ``learn`` moves it.
    """

    variance: float
    mean: float = 0.0
    factor: float = 1.0
    """``exp(mean)``, by which odds are multiplied: predictions are made far more often than the mean moves."""

    @classmethod
    def starting_at(cls, mean: float, variance: float) -> Correction:
        return cls(variance, mean, math.exp(mean))

    def move_to(self, mean: float) -> None:
        self.mean = max(-_FARTHEST, min(_FARTHEST, mean))
        self.factor = math.exp(self.mean)


def corrected(probability: float, factor: float) -> float:
    """The probability whose odds are ``factor`` times as high."""
    odds = probability * factor
    return odds / (1.0 - probability + odds)


def learn(corrections: Sequence[Correction], predicted: float, accepted: bool, least_variance: float = 0.0) -> None:
    """A trial is over, of which ``predicted`` was the probability with all of these corrections.

    They move as an extended Kalman filter moves them (logistic regression, one trial at a time): the uncertain ones
    more than the others, far while little is known, and hardly where the outcome was all but certain.
    """
    information = predicted * (1.0 - predicted)
    share = 1.0 / (1.0 + information * sum([each.variance for each in corrections]))
    for each in corrections:
        gain = each.variance * share
        each.move_to(each.mean + gain * (accepted - predicted))
        each.variance = max(least_variance, each.variance * (1.0 - gain * information))
