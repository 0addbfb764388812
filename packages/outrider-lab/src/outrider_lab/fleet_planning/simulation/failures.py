"""When replicas die."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Failures:
    """Failures without memory: a replica that has run for long is no more likely to die than a new one."""

    mtbf: float | None  # seconds between two failures of a replica, on average; None: none
    restart: float  # seconds that it is away
    rng: np.random.Generator

    def next(self, now: float) -> float | None:
        """Seconds at which a replica that runs from ``now`` on dies."""
        return None if self.mtbf is None else now + float(self.rng.exponential(self.mtbf))
