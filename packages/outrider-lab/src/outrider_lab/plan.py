"""Recommends a source and K for a model, prompts and a machine, by predictions from measured costs and acceptance."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from outrider.config import EngineConfig, SamplingParams, SpeculationParams, source_record
from outrider.llm import LLM
from outrider_lab.candidates import MIN_SPEEDUP
from outrider_lab.comparison import decode_rounds
from outrider_lab.cost import DraftCost, LatencyCurve, break_even_alpha
from outrider_lab.measure import Expect, Measurements, Tick, alpha, measure_latency_curve, measure_settings
from outrider_lab.prediction import SpeedupPrediction, predict_speedup

MAX_K = 10
BATCHES = (1, 4, 8, 16)
NUM_VALIDATED = 6  # sources whose best setting is run to test its prediction; half as many further settings


@dataclass(frozen=True)
class ValidatedPrediction:
    """A speedup predicted from some prompts, and the one measured on others."""

    source: str
    k: int
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """The relative error of the prediction."""
        return self.predicted / self.measured - 1


@dataclass(frozen=True)
class SpeculationPlan:
    """Measurements and advice. ``best`` is None if plain decoding is the advice."""

    target: LatencyCurve
    sources: dict[str, dict[str, float | None]]  # α, c, share of steps with a draft, τ
    predictions: list[SpeedupPrediction]
    best: SpeedupPrediction | None
    checked: list[ValidatedPrediction]
    reasons: list[str] = field(default_factory=list)
    complete: bool = True  # False: interrupted

    @property
    def median_error(self) -> float | None:
        """The median of the checked predictions' absolute relative errors."""
        return statistics.median(abs(c.error) for c in self.checked) if self.checked else None

    def as_dict(self) -> dict[str, Any]:
        def rows(items: Sequence[Any]) -> list[dict[str, Any]]:
            return [{k: round(v, 4) if isinstance(v, float) else v for k, v in vars(i).items()} for i in items]

        return {
            "recommended": None if self.best is None else rows([self.best])[0],
            "reasons": self.reasons,
            "complete": self.complete,
            "target_ms_by_rows": {n: round(1e3 * s, 3) for n, s in self.target.points.items()},
            "sources": {
                n: {k: None if v is None else round(v, 4) for k, v in s.items()} for n, s in self.sources.items()
            },
            "predictions": rows(self.predictions),
            "checked": [
                {**row, "error": round(c.error, 4)} for row, c in zip(rows(self.checked), self.checked, strict=True)
            ],
            "median_error": None if self.median_error is None else round(self.median_error, 4),
        }

    def settings(self, config: EngineConfig) -> dict[str, Any]:
        """Options of ``LLM`` that apply the recommendation: ``LLM(**settings)``."""
        found: dict[str, Any] = {"model": config.model, "dtype": config.dtype, "draft": "none"}
        if self.best is not None:
            found |= {"draft": self.best.source, "spec_length": self.best.k}
            if source_record(self.best.source).max_draft_models:
                found |= {"draft_model": list(config.draft_models), "draft_dtype": config.draft_dtype}
        return found


def make_plan(
    llm: LLM,
    prompts: Sequence[list[int]],
    params: SamplingParams,
    *,
    batch: int = 1,
    verify: bool = True,
    tick: Tick = lambda _: None,
    expect: Expect = lambda _: None,
) -> SpeculationPlan:
    """Measure on every other prompt, predict for every source, K and batch size, and check on the other prompts.

    Similar prompts should be neighbours, so that both halves have some of each kind. Ctrl-C (``KeyboardInterrupt``)
    ends the measurements; the plan is then made from the prompts that all settings have run, if there is one.

    Args:
        batch: requests that run at once when the recommendation is used.
        verify: test the best predictions on the other prompts.
    """
    learn, test = prompts[::2], prompts[1::2]
    settings = {"none": SpeculationParams(draft="none")} | {
        name: SpeculationParams(draft=name, spec_length=MAX_K)
        for name in llm.drafters
        if not (source_record(name).request_option or source_record(name).is_baseline)  # these need more than a prompt
    }
    pieces = 1 + len(settings) * (1 + len(learn))
    each = 1 + len(test) * _rounds(test) if verify and test else 0
    expect(pieces + each * (1 + min(len(settings) - 1, NUM_VALIDATED) + NUM_VALIDATED // 2))  # at most
    context = int(statistics.median(map(len, learn))) + params.max_tokens // 2
    target = measure_latency_curve(llm.model, context=context, rows=_rows(max(batch, *BATCHES)))
    tick("cost of a forward pass")
    found, complete = _measure(llm, learn, params, settings, tick)
    plain = found.pop("none")
    predictions = [
        predict_speedup(name, observed, plain, target, k, size)
        for name, observed in found.items()
        for k in range(1, MAX_K + 1)
        for size in sorted({batch, *BATCHES})
    ]
    ranked = sorted((p for p in predictions if p.batch == batch), key=lambda p: -p.speedup)
    best = ranked[0] if ranked and ranked[0].speedup >= MIN_SPEEDUP else None
    sources = {name: _facts(observed, target) for name, observed in found.items()}
    checked: list[ValidatedPrediction] = []
    if each and complete:
        chosen = _to_validate(predictions)
        expect(pieces + each * (1 + len(chosen)))
        checked, complete = _validate(llm, test, params, chosen, tick)
    reasons = _reasons(best, ranked, sources, target, plain, params, batch)
    if not complete:
        reasons.append(f"interrupted: measured on {len(plain.seconds)} of {len(learn)} prompts, and tested on none")
    return SpeculationPlan(target, sources, predictions, best, checked, reasons, complete)


def _measure(
    llm: LLM,
    prompts: Sequence[list[int]],
    params: SamplingParams,
    settings: Mapping[str, SpeculationParams],
    tick: Tick,
) -> tuple[dict[str, Measurements], bool]:
    """Measurements, and whether they are complete. Raises KeyboardInterrupt if not even one prompt is."""
    found: dict[str, Measurements] = {}
    try:
        return measure_settings(llm, prompts, params, settings, tick=tick, into=found), True
    except KeyboardInterrupt:
        if not found or not all(observed.seconds for observed in found.values()):
            raise
        return found, False


def _to_validate(predictions: Sequence[SpeedupPrediction]) -> list[SpeedupPrediction]:
    """The best K of each of the best sources, and the best few settings of all, at batch 1, as tests run them."""
    alone = sorted((p for p in predictions if p.batch == 1), key=lambda p: -p.speedup)
    firsts = {p.source: p for p in reversed(alone)}
    ranked = sorted(firsts.values(), key=lambda p: -p.speedup)[:NUM_VALIDATED]
    return list({(p.source, p.k): p for p in [*ranked, *alone[: NUM_VALIDATED // 2]]}.values())


def _validate(
    llm: LLM, prompts: Sequence[list[int]], params: SamplingParams, chosen: Sequence[SpeedupPrediction], tick: Tick
) -> tuple[list[ValidatedPrediction], bool]:
    """Predictions with measurements, and True; after an interruption an empty list, and False."""
    names = [f"{p.source} K={p.k}" for p in chosen]
    settings = {"none": SpeculationParams(draft="none")} | {
        name: SpeculationParams(draft=p.source, spec_length=p.k) for name, p in zip(names, chosen, strict=True)
    }
    try:
        found = measure_settings(llm, prompts, params, settings, rounds=_rounds(prompts), tick=tick)
    except KeyboardInterrupt:
        return [], False
    base = found["none"].s_per_token
    return [
        ValidatedPrediction(p.source, p.k, p.speedup, base / found[name].s_per_token)
        for name, p in zip(names, chosen, strict=True)
        if found[name].s_per_token
    ], True


def _rounds(prompts: Sequence[list[int]]) -> int:
    """The number of runs of each prompt in a test of predictions: 2 for few prompts."""
    return 2 if len(prompts) < 4 else 1


def _facts(observed: Measurements, target: LatencyCurve) -> dict[str, float | None]:
    rounds = decode_rounds(observed)
    return {
        "alpha": alpha(rounds),
        "c": observed.draft_s_per_token / target(1),
        "drafting_share": sum(d > 0 for d, _ in rounds) / max(1, len(rounds)),
        "tau_at_most": sum(a + 1 for _, a in rounds) / max(1, len(rounds)),
    }


def _reasons(
    best: SpeedupPrediction | None,
    ranked: Sequence[SpeedupPrediction],
    sources: dict[str, dict[str, float | None]],
    target: LatencyCurve,
    plain: Measurements,
    params: SamplingParams,
    batch: int,
) -> list[str]:
    """Reasons for the advice, and warnings."""
    found = []
    if not ranked:
        return ["no draft source can be built for this model"]
    first = ranked[0]
    facts = sources[first.source]
    if best is None:
        found.append(
            f"do not speculate: the best setting, {first.source} with K={first.k}, is predicted at {first.speedup:.2f}x"
        )
    else:
        found.append(
            f"{first.source} with K={first.k}: {first.speedup:.2f}x predicted (90% interval {first.low:.2f} to "
            f"{first.high:.2f}), α {facts['alpha'] or 0:.2f}, drafts in {facts['drafting_share'] or 0:.0%} of steps"
        )
    even = _break_even(first.k, target, facts["c"] or 0.0, batch)
    found.append(
        f"at K={first.k} a forward pass takes {target(batch * (1 + first.k)) / target(batch):.2f} times as long as "
        "without a draft, so it " + (f"pays from α = {even:.2f} on" if even is not None else "cannot pay")
    )
    if batch > 1 and target(2 * batch) > 1.5 * target(batch):
        found.append(f"at batch {batch} a forward pass is bound by compute: drafts compete with requests")
    if params.temperature > 0.9:
        found.append(f"temperature {params.temperature:g} makes text hard to guess; greedy requests would gain more")
    short = statistics.median(map(len, plain.outputs))
    if short < 16:
        found.append(f"outputs here are short (median {short:.0f} tokens): reading the prompt is what takes time")
    return found


def _break_even(k: int, target: LatencyCurve, c: float, batch: int) -> float | None:
    return break_even_alpha(k, target, DraftCost(per_token=lambda _: c * target(1)), batch=batch)


def _rows(batch: int) -> tuple[int, ...]:
    """Row counts to time: dense for small steps, up to a full batch with four draft tokens each."""
    return tuple(n for n in (1, 2, 3, 4, 6, 8, 11, 16, 24, 32, 48, 64, 96, 128) if n <= max(16, 5 * batch))


def with_seed(params: SamplingParams) -> SamplingParams:
    """Sampling with a seed, so that every setting writes the same text."""
    return params if params.greedy or params.seed is not None else replace(params, seed=1)
