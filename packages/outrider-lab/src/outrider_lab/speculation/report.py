"""Results and costs of a run of ``speculate``, and the theory's predictions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from outrider_lab import theory
from outrider_lab.speculation.walk import Walk


@dataclass(frozen=True)
class Report:
    """Counts and seconds of one run, and the theory of Leviathan et al. (2023) at its α, K and c.

    A round is a call of ``f``, or of ``f.batch``, that waited for an earlier result; plain sampling has one a value.
    """

    values: int
    draft_length: int  # K, the paper's γ
    pooled: bool  # f ran in a pool or an event loop, not in batches
    rounds: int
    f_calls: int  # prefixes that f was called for
    f_wasted: int  # calls for prefixes with a refused guess
    f_cancelled: int  # wasted calls that were cancelled before their end
    g_calls: int
    tested: int  # guesses that were accepted or refused
    accepted: int
    wall_s: float
    f_s: float  # mean seconds of a call of f, or of a batch
    g_s: float  # mean seconds of a guess

    @property
    def alpha(self) -> float | None:
        """Share of tested guesses that were accepted; None without any."""
        return self.accepted / self.tested if self.tested else None

    @property
    def values_per_round(self) -> float:
        return self.values / self.rounds if self.rounds else 0.0

    @property
    def c(self) -> float:
        """Seconds of a guess over those of a call of ``f``."""
        return self.g_s / self.f_s if self.f_s else 0.0

    @property
    def expected_values_per_round(self) -> float:
        """(1 - α^(K+1)) / (1 - α), equation (1), which assumes that every position is equally easy to guess."""
        return float(theory.expected_tokens(self._alpha, self.draft_length))

    @property
    def expected_improvement(self) -> float:
        """Plain wall time over speculation's by theorem 3.8, if a round takes as long as one call alone.

        A report has no measured gain. Calls that share a machine take longer, so that it needs a plain run to compare.
        """
        return float(theory.improvement(self._alpha, self.draft_length, self.c))

    @property
    def operations(self) -> float:
        """Calls of ``f`` per value: the price of concurrency."""
        return self.f_calls / self.values if self.values else 0.0

    @property
    def expected_operations(self) -> float:
        """Calls of ``f`` per value by theorem 3.11. In a pool 1 + (1 - α)K: each refusal wastes K running calls."""
        if self.pooled:
            return 1 + (1 - self._alpha) * self.draft_length
        return float(theory.operations(self._alpha, self.draft_length))

    @property
    def best_draft_length(self) -> int:
        """The K of 0 to 64 with the largest ``expected_improvement``, section 3.5."""
        return int(theory.best_k(self._alpha, self.c))

    @property
    def _alpha(self) -> float:
        return self.alpha or 0.0

    def as_dict(self) -> dict[str, Any]:
        derived = (
            "alpha", "c", "values_per_round", "expected_values_per_round", "expected_improvement",
            "operations", "expected_operations", "best_draft_length",
        )  # fmt: skip
        return {**asdict(self), **{name: getattr(self, name) for name in derived}}

    def to_json(self) -> str:
        """Counts, seconds and theory as one line of JSON."""
        return json.dumps(self.as_dict())

    def __str__(self) -> str:
        alpha = "no guess was tested" if self.alpha is None else f"α = {self.alpha:.3f}"
        head = f"{self.values} values in {self.rounds} rounds of f, K = {self.draft_length}"
        return "\n".join(
            (
                f"{head}, {alpha}, c = {self.c:.3f}",
                f"values per round   {self.values_per_round:6.2f}   theory {self.expected_values_per_round:6.2f}",
                f"calls of f a value {self.operations:6.2f}   theory {self.expected_operations:6.2f}",
                f"by theorem 3.8 {self.expected_improvement:.2f} times plain speed; best K: {self.best_draft_length}",
                f"calls: f {self.f_calls} ({self.f_wasted} wasted, {self.f_cancelled} of them cancelled), "
                f"g {self.g_calls}; {self.wall_s:.3f} s",
            )
        )


@dataclass(frozen=True)
class Result:
    """Result of ``speculate``."""

    values: list[Any]
    origins: list[str]
    """Origin of each value: "accepted" (a guess), "recovered" (in place of a guess) or "direct" (without a guess)."""
    seed: int  # gives the same values again
    report: Report

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)

    def __len__(self) -> int:
        return len(self.values)

    @classmethod
    def of(cls, walk: Walk, wall_s: float) -> Result:
        counts = walk.calls.counts
        report = Report(
            values=len(walk.values),
            draft_length=walk.draft_length,
            pooled=walk.calls.eager,
            rounds=walk.rounds,
            f_calls=counts.started,
            f_wasted=counts.dropped,
            f_cancelled=counts.cancelled,
            g_calls=walk.g_calls,
            tested=walk.tested,
            accepted=walk.origins.count("accepted"),
            wall_s=wall_s,
            f_s=counts.seconds / counts.timed if counts.timed else 0.0,
            g_s=walk.g_seconds / walk.g_calls if walk.g_calls else 0.0,
        )
        return cls(walk.values, walk.origins, walk.judge.seed, report)
