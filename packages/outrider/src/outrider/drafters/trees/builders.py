"""Draft trees in the making: which nodes are looked behind next, and which of the tokens found there become nodes.

A drafter looks behind the frontier of a tree, level by level, and never needs to know how the tree is chosen:

    while tree.frontier:
        tree.extend([choices_after(node, tree.width(node)) for node in tree.frontier])

so that one draft-model run serves a whole level of all requests' trees (docs/algorithms/trees.md).
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
    """What may follow a node: different tokens, or independent draws, best or first drawn first."""

    tokens: Sequence[int]
    scores: Sequence[float] = ()  # log-probability of each, where the tree ``ranks`` or the source knows it
    q_logits: Sequence[Floats] = ()  # of each, what it was drawn from: float32 [vocab]; where a verifier needs it


class TreeBuilder(Protocol):
    """A tree in the making."""

    tokens: list[int]
    parents: list[int]
    frontier: list[int]  # nodes to look behind next, all of one depth; -1 is the root; empty: the tree is complete

    @property
    def ranks(self) -> bool:
        """Whether it chooses by scores. Then no draft may carry ``q``: see docs/algorithms/trees.md."""
        ...

    def width(self, node: int) -> int:
        """How many choices it can use behind a node of the frontier."""
        ...

    def key(self, node: int) -> int:
        """A number for the first child of a frontier node, and those after it for its siblings; no other has it."""
        ...

    def extend(self, found: Sequence[Choices]) -> None:
        """Take what may follow each node of the frontier, in their order."""
        ...

    def scores_to(self, node: int) -> list[float]:
        """The source's guesses at the chance of each token down to ``node``; empty where it gives none."""
        ...

    def draft(self, source: str) -> Draft: ...


class StaticTreeBuilder:
    """Grows into a shape fixed beforehand, whose branches end where fewer tokens are possible."""

    ranks = False

    def __init__(self, shape: Shape) -> None:
        """``shape``: breadth first."""
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self._below = children(shape)  # of the root, then of each place of the shape
        self._places: list[int] = []  # where each node is in the shape
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
    """The ``nodes`` most likely nodes of all that a source can name, down to ``depth`` levels.

    A node's score is the log of the product of probabilities along its path, an estimate of the chance that it is
    accepted, as in EAGLE-2 (Li et al. 2024, "EAGLE-2: faster inference of language models with dynamic draft trees").
    EAGLE-2 looks behind a fixed number of nodes per level and keeps the best of what it found. Here a level looks
    behind exactly those nodes that are among the best so far: as no node scores above its parent, nothing behind the
    others can be. So the result is the best tree of its size, without a further parameter.
    """

    ranks = True

    def __init__(self, nodes: int, depth: int) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self._scores: list[float] = []
        self._kept: list[int] = []  # ascending; the others were among the best for a while
        self._nodes, self._levels = nodes, depth
        self.frontier = [-1] if nodes > 0 and depth > 0 else []

    def width(self, node: int) -> int:
        return self._nodes

    def key(self, node: int) -> int:
        return 0  # its choices are not drawn with noise of their own

    def extend(self, found: Sequence[Choices]) -> None:
        candidates: list[tuple[float, int, int]] = []  # score, parent, token
        full = len(self._kept) == self._nodes
        least = min(self._scores[node] for node in self._kept) if full else -math.inf  # what is below has no place
        for node, choices in zip(self.frontier, found, strict=True):
            so_far = self._score(node)
            for token, score in zip(choices.tokens, choices.scores, strict=True):
                if so_far + score > least:  # false for NaN too
                    candidates.append((so_far + score, node, token))
        self._levels -= 1
        scores = [self._scores[node] for node in self._kept] + [score for score, _, _ in candidates]
        # Sorting is stable and parents come first, so that of equals the parent stays.
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

    ``learned``: what its source knows of its own acceptance, for ``tree="learned"``; without it the tree is dynamic.
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
    """Tokens from the root's child down to ``node``."""
    return [tree.tokens[i] for i in path_to(tree.parents, node)]
