"""``outrider plan --what-if``: the expected speedup on hardware that cannot be measured. No model runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from outrider.errors import InvalidRequestError
from outrider_lab.cost import DraftCost, best_measured_k, break_even_alpha, measured_improvement, step_seconds
from outrider_lab.roofline import Hardware, ModelSize, Roofline, assumptions, devices_needed

MAX_K = 16


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A target, a draft model, hardware and a load. ``draft`` None: a source without cost (n-grams, lookup)."""

    target: ModelSize
    hardware: Hardware
    alpha: float
    alpha_source: str = "as given"
    draft: ModelSize | None = None
    batch: int = 1
    context: int = 512
    devices: int | None = None  # None: as many as hold the weights

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise InvalidRequestError(f"alpha={self.alpha:g} is not valid: it is a probability, from 0 to 1")
        if min(self.batch, self.context, 1 if self.devices is None else self.devices) < 1:
            raise InvalidRequestError(
                f"batch={self.batch}, context={self.context}, devices={self.devices}: use positive numbers"
            )


@dataclass(frozen=True)
class Estimate:
    """Expected speed of a scenario; ``by_k`` holds (K, speedup, tokens per second of one request)."""

    scenario: Scenario
    hardware: Hardware
    best_k: int
    speedup: float
    plain_tokens_per_s: float
    c: float
    break_even_alpha: float | None
    free_rows: int
    by_k: list[tuple[int, float, float]]
    assumptions: list[str]
    notes: list[str]

    def as_dict(self) -> dict[str, Any]:
        return {
            "best_k": self.best_k,
            "speedup": round(self.speedup, 3),
            "plain_tokens_per_s": round(self.plain_tokens_per_s, 1),
            "tokens_per_s": round(self.plain_tokens_per_s * self.speedup, 1),
            "hardware": self.hardware.name,
            "c": round(self.c, 4),
            "alpha": round(self.scenario.alpha, 4),
            "break_even_alpha": None if self.break_even_alpha is None else round(self.break_even_alpha, 3),
            "free_rows": self.free_rows,
            "by_k": [{"k": k, "speedup": round(s, 3), "tokens_per_s": round(t, 1)} for k, s, t in self.by_k],
            "assumptions": self.assumptions,
            "notes": self.notes,
        }

    def text(self) -> str:
        """The estimate for a reader, line by line."""
        head = (
            f"K = {self.best_k}: {self.speedup:.2f}x, {self.plain_tokens_per_s * self.speedup:.0f} tokens/s a request "
            f"instead of {self.plain_tokens_per_s:.0f} (c = {self.c:.3f})"
        )
        if self.best_k == 0:
            head = f"Plain decoding, {self.plain_tokens_per_s:.0f} tokens/s a request"
        shown = (1, 2, 3, 4, 5, 7, 10, 16)
        rows = [f"  K={k:<2} {gain:5.2f}x {rate:8.0f} tokens/s" for k, gain, rate in self.by_k if k in shown]
        even = "" if self.break_even_alpha is None else f"Pays from α = {self.break_even_alpha:.2f} on.\n"
        lines = [head, *rows, "", even + "Notes:", *(f"  · {note}" for note in self.notes or ["none"])]
        return "\n".join([*lines, "Assumed:", *(f"  · {line}" for line in self.assumptions)])


def estimate(scenario: Scenario) -> Estimate:
    """The speedup for every K up to ``MAX_K``, the best K, and the assumptions behind them."""
    s, notes = scenario, []
    models = [s.target, *([s.draft] if s.draft else [])]
    needed = devices_needed(s.hardware, *models)
    hardware = s.hardware.tensor_parallel(s.devices or needed)
    if (s.devices or needed) < needed:
        notes.append(f"the weights do not fit into {hardware.memory / 1e9:.0f} GB: {needed} devices would hold them")
    elif s.devices is None and needed > 1:
        notes.append(
            f"the weights need {sum(m.weight_bytes for m in models) / 1e9:.0f} GB, so {needed} devices are assumed; "
            "fewer bits per weight (int8, 4-bit) would need fewer"
        )
    target = Roofline(s.target, hardware, s.context, s.batch)
    draft_pass = None if s.draft is None else Roofline(s.draft, hardware, s.context, s.batch)
    draft = DraftCost() if draft_pass is None else DraftCost(per_token=draft_pass)
    rates = [s.alpha] * MAX_K
    best, speedup = best_measured_k(rates, target, draft, batch=s.batch)
    plain = 1 / step_seconds(0, target, draft, batch=s.batch)
    gains = [(k, measured_improvement(rates[:k], target, draft, batch=s.batch)) for k in range(MAX_K + 1)]
    even = break_even_alpha(max(best, 1), target, draft, batch=s.batch)
    if best == 0:
        notes.append(
            "do not speculate here: "
            + (f"it would pay from α = {even:.2f} on" if even is not None else "not even a perfect draft would pay")
        )
    if s.batch * (best + 1) > target.free_rows:
        notes.append(f"beyond {target.free_rows} rows a forward pass is bound by compute: every further row costs time")
    return Estimate(
        scenario=s,
        hardware=hardware,
        best_k=best,
        speedup=speedup,
        plain_tokens_per_s=plain,
        c=0.0 if draft_pass is None else draft_pass(s.batch) / target(s.batch),
        break_even_alpha=even,
        free_rows=target.free_rows,
        by_k=[(k, gain, gain * plain) for k, gain in gains],
        assumptions=[f"α = {s.alpha:.2f}, {s.alpha_source}", *assumptions(target, draft_pass)],
        notes=notes,
    )
