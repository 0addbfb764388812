"""Draft trees under construction: the nodes to expand next, and the choice of children.

A drafter expands the frontier of a tree level by level, and need not know how the tree chooses its nodes:

    while tree.frontier:
        tree.extend([choices_after(node, tree.width(node)) for node in tree.frontier])

One draft-model pass thus serves a whole level of all requests' trees (docs/algorithms/trees.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from outrider.config import SpeculationParams
from outrider.verify.arrays import Floats
from outrider.verify.draft import EMPTY, Draft
from outrider.verify.shapes import Acceptance, Shape, likeliest, static_shape
from outrider.verify.tree import children, path_to


@dataclass(frozen=True)
class Choices:
    """Candidate children of a node: distinct tokens, best first, or independent draws in the order drawn."""

    tokens: Sequence[int]
    scores: Sequence[float] = ()  # log-probability of each token, if the tree ``ranks`` or the source knows it
    q_logits: Sequence[Floats] = ()  # the row each token was drawn from, float32 [vocab], if a verifier needs it


class TreeBuilder(Protocol):
    """A draft tree under construction."""

    tokens: list[int]
    parents: list[int]
    frontier: list[int]  # nodes to expand next, all of one depth; -1 is the root; empty: the tree is complete

    @property
    def ranks(self) -> bool:
        """Whether the tree selects nodes by score; then its draft has no ``q_logits`` (docs/algorithms/trees.md)."""
        ...

    def width(self, node: int) -> int:
        """The most children that a frontier node can get."""
        ...

    def key(self, node: int) -> int:
        """The random-number key of a frontier node's first child; its siblings have the following, unique keys."""
        ...

    def extend(self, found: Sequence[Choices]) -> None:
        """Add a level from the choices of each frontier node, in frontier order."""
        ...

    def scores_to(self, node: int) -> list[float]:
        """The source's probability of each token on the path to ``node``; empty if it gives no scores."""
        ...

    def draft(self, source: str) -> Draft: ...


class StaticTreeBuilder:
    """Fills a fixed shape; branches without a possible token stay empty."""

    ranks = False

    def __init__(self, shape: Shape) -> None:
        """``shape``: the parent of each place, breadth first."""
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self._below = children(shape)  # places below the root, then below each place of the shape
        self._places: list[int] = []  # the place of each node in the shape
        self._q: list[Floats] = []
        self._scores: list[float] = []
        self.frontier = [-1] if shape else []

    def width(self, node: int) -> int:
        return len(self._at(node))

    def key(self, node: int) -> int:
        return self._at(node)[0]

    def extend(self, found: Sequence[Choices]) -> None:
        fresh = len(self.tokens)
        for node, choices in zip(self.frontier, found, strict=True):
            places = self._at(node)[: len(choices.tokens)]
            self.tokens += choices.tokens[: len(places)]
            self.parents += [node] * len(places)
            self._places += places
            self._scores += choices.scores[: len(places)]
            self._q += choices.q_logits[: len(places)]
        self.frontier = [node for node in range(fresh, len(self.tokens)) if self._at(node)]

    def scores_to(self, node: int) -> list[float]:
        return [math.exp(self._scores[i]) for i in path_to(self.parents, node)] if self._scores else []

    def draft(self, source: str) -> Draft:
        if not self.tokens:
            return EMPTY
        q = np.stack(self._q) if self._q else None
        scores = tuple(map(math.exp, self._scores)) if self._scores else None
        return Draft(tuple(self.tokens), tuple(self.parents), q, source, scores)

    def _at(self, node: int) -> list[int]:
        return self._below[0 if node < 0 else 1 + self._places[node]]


class DynamicTreeBuilder:
    """The ``nodes`` most likely nodes that a source can draft, down to ``depth`` levels.

    A node's score is the log of the product of probabilities along its path, an estimate of its acceptance
    probability as in EAGLE-2 (Li et al. 2024, "EAGLE-2: faster inference of language models with dynamic draft
    trees"). EAGLE-2 expands a fixed number of nodes per level. Here a level expands exactly the nodes that are among
    the best so far: no node scores above its parent, so no descendant of another node can be among the best. The
    result is the best tree of its size, without a further parameter.
    """

    ranks = True

    def __init__(self, nodes: int, depth: int) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self._scores: list[float] = []
        self._kept: list[int] = []  # the best nodes so far, ascending
        self._nodes, self._levels = nodes, depth
        self.frontier = [-1] if nodes > 0 and depth > 0 else []

    def width(self, node: int) -> int:
        return self._nodes

    def key(self, node: int) -> int:
        return 0  # unused: its choices are ranked, or drawn with the position's noise

    def extend(self, found: Sequence[Choices]) -> None:
        candidates: list[tuple[float, int, int]] = []  # score, parent, token
        full = len(self._kept) == self._nodes
        least = (
            min(self._scores[node] for node in self._kept) if full else -math.inf
        )  # candidates up to this score are dropped
        for node, choices in zip(self.frontier, found, strict=True):
            so_far = self._score(node)
            for token, score in zip(choices.tokens, choices.scores, strict=True):
                if so_far + score > least:  # false for NaN too
                    candidates.append((so_far + score, node, token))
        self._levels -= 1
        scores = [self._scores[node] for node in self._kept] + [score for score, _, _ in candidates]
        # Sorting is stable and parents come first, so that a parent precedes a child of equal score.
        best = sorted(range(len(scores)), key=lambda i: -scores[i])[: self._nodes]
        old = len(self._kept)
        kept = sorted(self._kept[i] for i in best if i < old)
        fresh: list[int] = []
        for i in sorted(i for i in best if i >= old):
            score, parent, token = candidates[i - old]
            fresh.append(len(self.tokens))
            self.tokens.append(token)
            self.parents.append(parent)
            self._scores.append(score)
        self._kept = kept + fresh
        self.frontier = fresh if self._levels > 0 else []

    def scores_to(self, node: int) -> list[float]:
        return [self._own(i) for i in path_to(self.parents, node)]

    def draft(self, source: str) -> Draft:
        if not self._kept:
            return EMPTY
        place = {node: i for i, node in enumerate(self._kept)} | {-1: -1}
        return Draft(
            tuple(self.tokens[node] for node in self._kept),
            tuple(place[self.parents[node]] for node in self._kept),
            None,
            source,
            tuple(self._own(node) for node in self._kept),
        )

    def _own(self, node: int) -> float:
        return math.exp(self._scores[node] - self._score(self.parents[node]))

    def _score(self, node: int) -> float:
        return 0.0 if node < 0 else self._scores[node]


def make_tree_builder(speculation: SpeculationParams, nodes: int, depth: int, learned: Acceptance = ()) -> TreeBuilder:
    """The tree a request asks for, of at most ``nodes`` nodes and ``depth`` levels.

    ``learned``: the source's acceptance by position and rank, for ``tree="learned"``; if empty, the tree is dynamic.
    """
    if speculation.tree == "learned" and learned:
        return StaticTreeBuilder(likeliest(learned, nodes, depth))
    if speculation.tree in ("dynamic", "learned"):
        return DynamicTreeBuilder(nodes, depth)
    shape = (
        static_shape(speculation.tree, depth) if isinstance(speculation.tree, tuple) else tuple(range(-1, depth - 1))
    )
    return StaticTreeBuilder(shape[:nodes])


def tokens_to(tree: TreeBuilder, node: int) -> list[int]:
    """The tokens on the path from the root's child to ``node``."""
    return [tree.tokens[i] for i in path_to(tree.parents, node)]
