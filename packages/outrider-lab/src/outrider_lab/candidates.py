"""Draft sources as candidates, ranked by their expected speedup; ``pick`` and ``plan`` share these rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from outrider.verify.tree import depths
from outrider_lab.cost import Cost, DraftCost, best_measured_k, break_even_alpha
from outrider_lab.theory import best_tree, tree_tokens

MIN_SPEEDUP = 1.05
"""The least predicted speedup that is recommended: noise hides smaller ones."""

MAX_DEPTH = 12
"""The most draft tokens on a path that are considered."""


@dataclass(frozen=True)
class SourceCandidate:
    """A draft source: its acceptance rate by depth, its cost, and the origin of both (``why``)."""

    source: str
    rates: tuple[float, ...]
    cost: DraftCost
    why: str
    drafting_share: float = 1.0  # share of steps in which the source proposes a draft
    siblings: tuple[float, ...] = ()  # acceptance by rank of one node's children; empty: no trees


@dataclass(frozen=True)
class RankedSource:
    """A candidate at its best K, for one kind of hardware and one load."""

    candidate: SourceCandidate
    k: int
    speedup: float
    break_even_alpha: float | None

    def as_dict(self) -> dict[str, Any]:
        return {
            "source": self.candidate.source,
            "spec_length": self.k,
            "speedup": round(self.speedup, 3),
            "break_even_alpha": None if self.break_even_alpha is None else round(self.break_even_alpha, 3),
            "why": self.candidate.why,
        }


def rank_sources(candidates: Sequence[SourceCandidate], target: Cost, *, batch: int = 1) -> list[RankedSource]:
    """Every candidate at its best K, fastest first.

    A step without a draft costs and gains nothing. The source's gain is therefore averaged with plain decoding's by
    time: 1 / (share / gain + 1 - share), where ``share`` is ``drafting_share``.
    """
    ranking = []
    for candidate in candidates:
        k, gain = best_measured_k(candidate.rates, target, candidate.cost, batch=batch)
        share = candidate.drafting_share
        mixed = 1 / (share / gain + 1 - share)
        even = break_even_alpha(max(k, 1), target, candidate.cost, batch=batch)
        ranking.append(RankedSource(candidate, k, mixed, even))
    return sorted(ranking, key=lambda ranked: -ranked.speedup)


def best_shape(ranked: RankedSource, target: Cost, *, batch: int = 1) -> tuple[tuple[int, ...] | None, float]:
    """The tree with the largest gain over the best chain, or None, and its speedup.

    A row costs the same in a tree as in a chain. A draft model runs once for each level, so a wide tree costs no more
    drafting than a chain of the same depth.
    """
    candidate, best, found = ranked.candidate, ranked.speedup, None
    if not candidate.siblings:
        return None, best
    plain = target(batch)
    for nodes in (2, 4, 8, 12, 16, 24, 32, 48):
        parents = best_tree(candidate.siblings, nodes, depth=MAX_DEPTH)
        levels = 1 + max(depths(parents), default=-1)
        seconds = target(batch * (1 + len(parents))) + candidate.cost(levels, batch)
        gain = tree_tokens(parents, candidate.siblings) * plain / seconds
        if gain > best * 1.02:
            best, found = gain, parents
    return found, best
