"""Regret: the loss of an adaptive setting against the best fixed one, and its confidence interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from outrider.config import SpeculationParams
from outrider_lab.bench.summary import BackendResult

_RESAMPLES = 2000
_FEWEST = 3  # questions for an interval


@dataclass(frozen=True)
class Regret:
    """A share of speed, and its 95% interval; below 0: faster than the best fixed setting."""

    share: float
    low: float | None = None  # None: too few questions
    high: float | None = None

    @property
    def is_told(self) -> bool:
        """Whether the interval lies above 0, so that noise alone does not explain the regret."""
        return self.low is not None and self.low > 0

    def as_dict(self) -> dict[str, float | None]:
        """For JSON."""
        return {
            "regret": round(self.share, 3),
            "regret_low": None if self.low is None else round(self.low, 3),
            "regret_high": None if self.high is None else round(self.high, 3),
        }


def regret(own: Sequence[float], rivals: Sequence[Sequence[float]]) -> Regret:
    """The regret of a setting that took ``own[i]`` seconds a token for question ``i``, against its best rival.

    Noise takes part in choosing the best of several rivals, which makes the share too large. The interval is therefore
    a bootstrap over questions: each resample chooses the best rival on the questions that it leaves out, and compares
    on those that it contains. Questions are paired, because a hard one is hard for all settings.
    """
    mine, theirs = np.log(np.asarray(own)), np.log(np.asarray(rivals))  # [n], [rivals, n]
    share = 1 - float(np.exp(theirs.mean(1).min() - mine.mean()))
    n = len(mine)
    if n < _FEWEST:
        return Regret(share)
    taken = np.random.default_rng(0).multinomial(n, [1 / n] * n, size=_RESAMPLES)  # [resamples, n]
    left_out = taken == 0
    left_out[~left_out.any(1)] = True
    best = (theirs @ left_out.T).argmin(0)
    shares = 1 - np.exp(((theirs[best] - mine) * taken).sum(1) / n)
    low, high = np.quantile(shares, [0.025, 0.975])
    return Regret(share, float(low), float(high))


def rivals_of(name: str, settings: Mapping[str, SpeculationParams]) -> list[str]:
    """The rivals of an adaptive setting: the fixed settings of the same source, and plain decoding.

    Empty if the setting is not adaptive, or its source has no fixed setting.
    """
    own = settings[name]
    if own.spec_length != "auto" or own.draft == "none":
        return []
    fixed = [n for n, s in settings.items() if s.draft == own.draft and s.spec_length != "auto"]
    return [*fixed, *(n for n, s in settings.items() if s.draft == "none")] if fixed else []


def add_regrets(
    results: Mapping[str, Any],
    records: Mapping[str, BackendResult],
    units: Mapping[str, Sequence[int]],
    settings: Mapping[str, SpeculationParams],
) -> None:
    """Add ``regret`` and its interval to the results of each adaptive setting with rivals, in all and by category.

    ``units``: the units of each category.
    """
    for name in settings:
        rivals = rivals_of(name, settings)
        if rivals:
            found, everything = results[name], list(records[name].seconds)
            parts = [(found["all"], everything), *((found["categories"][kind], own) for kind, own in units.items())]
            for part, own_units in parts:
                theirs = [records[rival].per_token(own_units) for rival in rivals]
                part |= regret(records[name].per_token(own_units), theirs).as_dict()
