"""Predicts the speedup of a source at any K and batch size, from measured rounds and a measured latency curve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from outrider_lab.comparison import decode_rounds, predicted_seconds
from outrider_lab.cost import LatencyCurve
from outrider_lab.measure import Measurements, Round, truncate_rounds

RESAMPLES = 400  # of the bootstrap


@dataclass(frozen=True)
class SpeedupPrediction:
    """One source at one K and batch size. ``low`` and ``high``: 90% interval over prompts (bootstrap)."""

    source: str
    k: int
    batch: int
    speedup: float
    low: float
    high: float


def predict_speedup(
    name: str, observed: Measurements, plain: Measurements, target: LatencyCurve, k: int, batch: int
) -> SpeedupPrediction:
    """Predict the speedup of ``observed`` over ``plain``. All requests of a batch are assumed to draft alike.

    ``target`` has no costs such as those of the rows of lookahead's window or of a tree's branches. They enter as a
    factor: the seconds that the source's steps took, over the seconds predicted for them.
    """

    def cost(rows: float) -> float:
        return target(batch * rows) / batch

    correction = _measured_over_predicted(observed, target) / _measured_over_predicted(plain, target)

    def gain(requests: Sequence[Sequence[Round]]) -> float:
        rounds = [pair for request in requests for pair in request]
        tokens = sum(accepted + 1 for _, accepted in rounds)
        seconds = predicted_seconds(rounds, cost, observed.draft_s_per_token, observed.overhead_s)
        return tokens * (cost(1) + plain.overhead_s) / (seconds * correction) if seconds else 1.0

    requests = [truncate_rounds(request[1:], k) for request in observed.rounds]
    rng = np.random.default_rng(0)
    spread = [gain([requests[i] for i in rng.integers(len(requests), size=len(requests))]) for _ in range(RESAMPLES)]
    low, high = np.quantile(spread, [0.05, 0.95])
    return SpeedupPrediction(name, k, batch, gain(requests), float(low), float(high))


def _measured_over_predicted(observed: Measurements, target: LatencyCurve) -> float:
    """Measured seconds over predicted seconds of the same rounds."""
    predicted = predicted_seconds(decode_rounds(observed), target, observed.draft_s_per_token, observed.overhead_s)
    return sum(observed.seconds) / predicted if predicted else 1.0
