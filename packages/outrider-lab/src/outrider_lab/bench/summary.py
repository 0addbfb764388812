"""Summaries of a benchmark: ratios with confidence intervals, and percentiles."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import stats

from outrider_lab.bench.arrivals import ServedRequest


@dataclass(frozen=True)
class Ratio:
    """Geometric mean of paired ratios, with a 95% confidence interval (Student's t on their logarithms)."""

    mean: float
    low: float
    high: float
    pairs: int

    def __str__(self) -> str:
        return f"{self.mean:.2f}x ({self.low:.2f} to {self.high:.2f})"


def paired_ratio(base: Sequence[float], own: Sequence[float]) -> Ratio:
    """The ratio base / own over pairs: the speedup over the baseline if both are seconds per token."""
    logs = [math.log(b / o) for b, o in zip(base, own, strict=True)]
    mean = float(np.mean(logs))
    half = math.inf
    if len(logs) > 1:
        half = float(stats.t.ppf(0.975, len(logs) - 1) * np.std(logs, ddof=1) / math.sqrt(len(logs)))
    return Ratio(math.exp(mean), math.exp(mean - half), math.exp(mean + half) if half < 700 else math.inf, len(logs))


@dataclass
class DraftCounts:
    """Counts of drafting over some requests."""

    runs: int = 0  # forward passes of the target
    tokens: int = 0  # generated
    drafted: int = 0
    accepted: int = 0

    def add(self, other: DraftCounts) -> None:
        self.runs += other.runs
        self.tokens += other.tokens
        self.drafted += other.drafted
        self.accepted += other.accepted

    def rates(self) -> dict[str, float]:
        """τ, and α if anything was drafted; empty for engines without counts."""
        found = {"mean_acceptance_length": round(self.tokens / self.runs, 3)} if self.runs else {}
        return found | ({"draft_acceptance_rate": round(self.accepted / self.drafted, 4)} if self.drafted else {})


@dataclass
class BackendResult:
    """Results of one backend: seconds[unit][round], and statistics of its requests. A unit is a group of prompts."""

    seconds: dict[int, list[float]] = field(default_factory=dict)
    tokens: dict[int, list[list[int]]] = field(default_factory=dict)  # by unit, then by request
    drafts: dict[int, DraftCounts] = field(default_factory=dict)  # by unit, over all rounds
    ttft: list[float] = field(default_factory=list)
    inter_token_latencies: list[float] = field(default_factory=list)
    latency: list[float] = field(default_factory=list)
    drafted_at: Counter[int] = field(default_factory=Counter)
    accepted_at: Counter[int] = field(default_factory=Counter)
    peak_mb: float = 0.0

    def add(self, unit: int, seconds: float, tokens: list[list[int]], served: Sequence[ServedRequest]) -> None:
        self.seconds.setdefault(unit, []).append(seconds)
        self.tokens.setdefault(unit, tokens)
        drafts = self.drafts.setdefault(unit, DraftCounts())
        for one in served:
            stats = one.stats
            drafts.add(
                DraftCounts(
                    runs=stats.target_runs,
                    tokens=len(one.tokens),
                    drafted=stats.num_draft_tokens,
                    accepted=stats.num_accepted_draft_tokens,
                )
            )
            self.ttft.append(one.ttft)
            self.inter_token_latencies += one.inter_token_latencies
            self.latency.append(one.latency)
            self.drafted_at.update(stats.drafted_at)
            self.accepted_at.update(stats.accepted_at)

    def per_token(self, units: Sequence[int]) -> list[float]:
        """Seconds per token of each unit, the median over rounds."""
        return [float(np.median(self.seconds[u])) / max(1, sum(map(len, self.tokens[u]))) for u in units]


def summary(own: BackendResult, base: BackendResult, units: Sequence[int]) -> dict[str, Any]:
    """Summary of one backend over some units, compared with the baseline ``base``."""
    count = sum(len(t) for u in units for t in own.tokens[u])
    seconds = sum(float(np.median(own.seconds[u])) for u in units)
    theirs, mine = base.per_token(units), own.per_token(units)
    quartiles = np.quantile(1 / np.array(mine), [0.25, 0.5, 0.75])
    ratio = paired_ratio(theirs, mine)
    same = sum(a == b for u in units for a, b in zip(own.tokens[u], base.tokens[u], strict=True))
    drafts = DraftCounts()
    for unit in units:
        drafts.add(own.drafts[unit])
    found: dict[str, Any] = {
        "tokens_per_s": round(count / seconds, 2),
        "tokens_per_s_quartiles": [round(float(q), 2) for q in quartiles],  # over units: 25, 50 and 75%
        "speedup": round(ratio.mean, 3),
        "speedup_low": round(ratio.low, 3),
        "speedup_high": round(ratio.high, 3) if ratio.high < math.inf else None,
        "speedup_median": round(float(np.median(np.divide(theirs, mine))), 3),
        "identical": same,
        "requests": sum(len(own.tokens[u]) for u in units),
        **drafts.rates(),
    }
    return found


def details(own: BackendResult) -> dict[str, Any]:
    """Memory, latencies and acceptance by position, over all units."""
    found: dict[str, Any] = {"peak_mb": round(own.peak_mb)}
    for name, values in (("ttft", own.ttft), ("inter_token", own.inter_token_latencies), ("latency", own.latency)):
        if values:
            points = np.quantile(values, [0.5, 0.9, 0.99])
            found[name + "_s"] = {p: round(float(v), 4) for p, v in zip(("p50", "p90", "p99"), points, strict=True)}
    if own.drafted_at:
        depths = range(len(own.drafted_at))
        found["acceptance_by_position"] = [round(own.accepted_at[i] / own.drafted_at[i], 3) for i in depths]
    return found
