"""Recommends draft source, K, draft temperature and tree for a workload described in flags, by rules.

``outrider pick`` applies them to priors from the literature; ``outrider plan`` ranks measurements by the same rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from outrider_lab.candidates import MIN_SPEEDUP, RankedSource, best_shape, rank_sources
from outrider_lab.priors import DescribedWorkload, candidates
from outrider_lab.roofline import Roofline, devices_needed

SHORT_OUTPUT = 16


@dataclass(frozen=True)
class Recommendation:
    """The advice; ``source`` is "none" for plain decoding. ``ranking`` holds every candidate, best first."""

    source: str
    spec_length: int
    draft_temperature: float | None
    tree: tuple[int, ...] | None  # parents, if a tree is expected to beat the chain
    speedup: float
    reasons: tuple[str, ...]
    ranking: tuple[RankedSource, ...]

    def as_dict(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "spec_length": self.spec_length,
            "draft_temperature": self.draft_temperature,
            "tree": None if self.tree is None else list(self.tree),
            "speedup": round(self.speedup, 3),
            "reasons": list(self.reasons),
            "ranking": [ranked.as_dict() for ranked in self.ranking],
        }


def recommend(load: DescribedWorkload) -> Recommendation:
    """Apply the rules to priors for ``load``."""
    hardware = load.hardware.tensor_parallel(devices_needed(load.hardware, load.target))
    target = Roofline(load.target, hardware, load.context, load.batch)
    ranking = rank_sources(candidates(load, hardware), target, batch=load.batch)
    reasons = [*warnings_for(load, target)]
    best = ranking[0]
    if best.speedup < MIN_SPEEDUP or load.output_tokens <= SHORT_OUTPUT:
        reasons.insert(0, f"plain decoding: the best source, {best.candidate.source}, would gain {best.speedup:.2f}x")
        return Recommendation("none", 0, None, None, 1.0, tuple(reasons), tuple(ranking))
    tree, tree_speedup = best_shape(best, target, batch=load.batch)
    reasons.insert(0, f"{best.candidate.source}: {best.candidate.why}")
    reasons.insert(1, f"K = {best.k}: beyond it a further draft token costs more than it is likely to win")
    if tree is not None:
        reasons.insert(
            2,
            f"as a tree of {len(tree)} nodes it could bring {tree_speedup:.1f}x: up to {target.free_rows} rows cost "
            "about as much as one",
        )
    temperature = draft_temperature(load, best.candidate.source)
    if temperature is not None:
        reasons.append(
            "draft temperature = the request's: drawing with the target's noise, the draft then agrees most often"
        )
    reasons += training_advice(load, ranking)
    return Recommendation(
        best.candidate.source, best.k, temperature, tree, best.speedup, tuple(reasons), tuple(ranking)
    )


def warnings_for(load: DescribedWorkload, target: Roofline) -> list[str]:
    """The reasons against speculation that apply to ``load``."""
    found = []
    if load.batch > target.free_rows // 2:
        found.append(
            f"a batch of {load.batch} already fills the {target.free_rows} rows that a forward pass takes for "
            "nothing: drafts compete with requests"
        )
    if load.target.parameters < 0.3e9:
        found.append("a target this small leaves a draft model little to save: use sources without a model")
    if load.temperature > 1.0:
        found.append(f"at temperature {load.temperature:g} text is hard to guess: expect less than the numbers here")
    if load.output_tokens <= SHORT_OUTPUT:
        found.append(f"outputs of {load.output_tokens} tokens end before drafts pay for themselves")
    return found


def draft_temperature(load: DescribedWorkload, source: str) -> float | None:
    """Advice for ``draft_temperature``; None for sources without one and for greedy requests."""
    return load.temperature if source == "model" and load.temperature > 0 else None


def training_advice(load: DescribedWorkload, ranking: Sequence[RankedSource]) -> list[str]:
    """The expected gain of a trained head, if there is none and it is worth training."""
    if load.can_train:
        return []
    trained = replace(load, can_train=True)
    hardware = load.hardware.tensor_parallel(devices_needed(load.hardware, load.target))
    target = Roofline(load.target, hardware, load.context, load.batch)
    best = rank_sources(candidates(trained, hardware), target, batch=load.batch)[0]
    if best.speedup < 1.1 * ranking[0].speedup:
        return []
    return [f"training a head ({best.candidate.source}) could bring {best.speedup:.1f}x"]
