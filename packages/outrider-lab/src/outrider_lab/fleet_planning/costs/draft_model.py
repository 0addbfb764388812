"""A draft source of a simulated replica."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from outrider.errors import InvalidRequestError
from outrider_lab.cost import LatencyCurve
from outrider_lab.fleet_planning.workload import Floats

MAX_K = 12
"""The most simulated draft tokens of a request in a step."""

_FREE = LatencyCurve({1: 1e-9})


@dataclass(frozen=True)
class SimulatedDraft:
    """A draft source: its share of steps with a draft, the acceptance of its tokens, and its cost."""

    name: str
    rates: tuple[float, ...]  # by depth, the acceptance rate of a token whose predecessors were accepted
    share: float = 1.0  # share of steps with a draft
    seconds: LatencyCurve = _FREE  # of one depth, by the number of requests that draft together
    spec_length: int | Literal["auto"] = "auto"  # auto: the number that gains most at the step's batch size

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1 or not all(0 <= rate <= 1 for rate in self.rates):
            raise InvalidRequestError(f"share={self.share:g}, rates={self.rates}: these are probabilities, from 0 to 1")
        if self.spec_length != "auto" and not 1 <= self.spec_length <= MAX_K:
            raise InvalidRequestError(
                f"spec_length={self.spec_length} is not valid: use auto, or 1 to {MAX_K}", param="spec_length"
            )

    @cached_property
    def refusal(self) -> Floats:
        """float64 [depths], rising: the probability that a depth or one before it is refused."""
        rates = (*self.rates, *[self.rates[-1] if self.rates else 0.0] * MAX_K)[:MAX_K]
        return np.asarray(1 - np.cumprod(rates), dtype=np.float64)

    @cached_property
    def _levels(self) -> list[float]:
        return [0.0, *(self.seconds(n) for n in range(1, 1025))]

    def level_seconds(self, requests: int) -> float:
        """Seconds to draft one token for each of ``requests`` requests."""
        return self._levels[requests] if requests < len(self._levels) else self.seconds(requests)
