"""Compares predicted and measured speedups, as table 4 of Leviathan et al. (2023)."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from outrider.config import SamplingParams, SpeculationParams
from outrider.llm import LLM
from outrider_lab import theory
from outrider_lab.cost import Cost
from outrider_lab.measure import (
    Measurements,
    Round,
    Tick,
    measure_latency_curve,
    measure_settings,
)


@dataclass(frozen=True)
class ComparisonRow:
    """Speedups of one setting: ``expected`` by theorem 3.8 from α and c, ``predicted`` from the machine's costs."""

    setting: str
    temperature: float
    k: int
    alpha: float | None
    tau: float
    c: float
    expected: float
    predicted: float
    measured: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def predicted_seconds(rounds: Sequence[Round], target: Cost, draft_s_per_token: float, overhead: float) -> float:
    """Predicted seconds of ``rounds``: Σ T(1 + drafted) + drafting + overhead."""
    return sum(target(1 + drafted) + drafted * draft_s_per_token + overhead for drafted, _ in rounds)


def decode_rounds(observed: Measurements) -> list[Round]:
    """The rounds of each request but its first, which counts as reading the prompt."""
    return [pair for request in observed.rounds for pair in request[1:]]


def predict(observed: Measurements, plain: Measurements, target: Cost) -> float:
    """Speedup over plain decoding by the observed rounds."""
    rounds = decode_rounds(observed)
    tokens = sum(accepted + 1 for _, accepted in rounds)
    seconds = predicted_seconds(rounds, target, observed.draft_s_per_token, observed.overhead_s)
    return tokens * (target(1) + plain.overhead_s) / seconds if seconds else 1.0


def compare(
    llm: LLM,
    prompts: Sequence[list[int]],
    params: SamplingParams,
    settings: Mapping[str, SpeculationParams],
    *,
    rounds: int = 2,
    tick: Tick = lambda _: None,
) -> list[ComparisonRow]:
    """Run every setting interleaved with plain decoding, and compare measured with predicted speedups.

    Costs and rounds come from half of the prompts, measured speedups from the other half: predictions are never made
    from the prompts that test them.
    """
    found = measure_settings(
        llm, prompts, params, {"none": SpeculationParams(draft="none"), **settings}, rounds=rounds, tick=tick
    )
    context = int(statistics.median(len(p) for p in prompts)) + params.max_tokens // 2
    target = measure_latency_curve(llm.model, context=context)
    tick("cost of a forward pass")
    plain_known, plain_new = _halves(found.pop("none"))
    result = []
    for name, observed in found.items():
        known, new = _halves(observed)
        pairs = decode_rounds(new)
        rate = known.alpha or 0.0
        k = max((drafted for drafted, _ in known.all_rounds), default=0)  # the longest draft
        c = known.draft_s_per_token / target(1)
        result.append(
            ComparisonRow(
                setting=name,
                temperature=params.temperature,
                k=k,
                alpha=known.alpha,
                tau=sum(a + 1 for _, a in pairs) / max(1, len(pairs)),
                c=c,
                expected=float(theory.improvement(rate, k, c)),
                predicted=predict(known, plain_known, target),
                measured=plain_new.s_per_token / new.s_per_token if new.s_per_token else 1.0,
            )
        )
    return result


def _halves(observed: Measurements) -> tuple[Measurements, Measurements]:
    """Requests at even and at odd places. Drafting and overhead are sums over all: both halves get their rates."""
    parts = []
    for start in (0, 1):
        part = Measurements(
            tokens=observed.tokens[start::2],
            seconds=observed.seconds[start::2],
            rounds=observed.rounds[start::2],
            outputs=observed.outputs[start::2],
        )
        drafted = sum(d for d, _ in part.all_rounds)
        part.draft_s = observed.draft_s_per_token * drafted
        part.steps, part.busy_s = 1, part.draft_s + observed.overhead_s
        parts.append(part)
    return parts[0], parts[1]
