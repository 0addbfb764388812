"""Ranking ways to draft by what they should gain; ``pick`` and ``plan`` share these rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from outrider.analysis.cost import Cost, DraftCost, best_measured_k, break_even
from outrider.analysis.theory import best_tree, tree_tokens

WORTHWHILE = 1.05
"""Predicted gains below this are lost in noise: plain decoding is the better advice."""

DEPTH = 12
"""Draft tokens on a path that are considered at most."""


@dataclass(frozen=True)
class Candidate:
    """A way to draft: its acceptance by depth, its cost, and where both are from."""

    source: str
    rates: tuple[float, ...]
    cost: DraftCost
    why: str
    drafts_share: float = 1.0  # of steps in which it has anything to say
    siblings: tuple[float, ...] = ()  # acceptance by rank of one node's children, if it can draft trees


@dataclass(frozen=True)
class Choice:
    """A candidate at its best K on one machine and load."""

    candidate: Candidate
    k: int
    speedup: float
    break_even: float | None

    def as_dict(self) -> dict[str, Any]:
        return {
            "source": self.candidate.source,
            "spec_length": self.k,
            "speedup": round(self.speedup, 3),
            "break_even_alpha": None if self.break_even is None else round(self.break_even, 3),
            "why": self.candidate.why,
        }


def choose(candidates: Sequence[Candidate], target: Cost, *, batch: int = 1, overhead: float = 0.0) -> list[Choice]:
    """Every candidate at its best K, fastest first.

    A source that is silent in some steps costs nothing there and wins nothing: its gain is mixed with plain decoding's
    by time, 1 / (share / gain + 1 - share) of the tokens.
    """
    choices = []
    for candidate in candidates:
        k, gain = best_measured_k(candidate.rates, target, candidate.cost, batch=batch, overhead=overhead)
        share = candidate.drafts_share
        mixed = 1 / (share / gain + 1 - share)
        even = break_even(max(k, 1), target, candidate.cost, batch=batch, overhead=overhead)
        choices.append(Choice(candidate, k, mixed, even))
    return sorted(choices, key=lambda choice: -choice.speedup)


def tree_or_chain(choice: Choice, target: Cost, *, batch: int = 1) -> tuple[tuple[int, ...] | None, float]:
    """The tree that gains most over the chosen chain, or None, and its speedup.

    Rows cost the same in a tree as in a chain, but a draft model must run once a level only, so that a wide tree costs
    no more drafting than a chain as deep.
    """
    candidate, best, found = choice.candidate, choice.speedup, None
    if not candidate.siblings:
        return None, best
    plain = target(batch)
    for nodes in (2, 4, 8, 12, 16, 24, 32, 48):
        parents = best_tree(candidate.siblings, nodes, depth=DEPTH)
        levels = _levels(parents)
        seconds = target(batch * (1 + len(parents))) + candidate.cost(levels, batch)
        gain = tree_tokens(parents, candidate.siblings) * plain / seconds
        if gain > best * 1.02:
            best, found = gain, parents
    return found, best


def _levels(parents: Sequence[int]) -> int:
    depth: list[int] = []
    for parent in parents:
        depth.append(1 if parent < 0 else depth[parent] + 1)
    return max(depth, default=0)
