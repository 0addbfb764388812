"""Shapes of draft trees, fixed before any token is known.

A shape is the parents of its nodes (``verify.draft.Draft``), breadth first. Any prefix of a shape is a shape too, so a
smaller budget takes a prefix.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache

from outrider.config import (
    AUTO_LENGTH,
    CHAIN_VERIFIERS,
    FIXED_LENGTH,
    DraftShape,
    SpeculationParams,
    source_record,
)
from outrider.verify.draft import Draft
from outrider.verify.tree import children

Shape = tuple[int, ...]
Acceptance = tuple[tuple[float, ...], ...]
"""[depth][rank]: how often the target's token was the source's guess of this rank at this depth."""


def from_widths(widths: Iterable[int]) -> Shape:
    """Every node at depth d has ``widths[d]`` children: ``(2, 1) -> (-1, -1, 0, 1)``."""
    parents: list[int] = []
    level = [-1]
    for width in widths:
        above, level = level, []
        for parent in above:
            level += range(len(parents), len(parents) + width)
            parents += [parent] * width
    return tuple(parents)


def breadth_first(parents: Sequence[int], depth: int) -> Shape:
    """The tree cut to ``depth`` levels, its nodes ordered by depth; siblings keep their order.

    ``(-1, 0, -1), 2 -> (-1, -1, 0)``
    """
    below = children(parents)
    out: list[int] = []
    level = [(-1, -1)]  # node in the given tree, and in the result
    for _ in range(depth):
        following: list[tuple[int, int]] = []
        for node, place in level:
            for child in below[1 + node]:
                following.append((child, len(out)))
                out.append(place)
        level = following
    return tuple(out)


@lru_cache(maxsize=64)
def static_shape(tree: tuple[int, ...], depth: int) -> Shape:
    """The shape of ``SpeculationParams.tree``, given as widths or parents, cut to ``depth`` levels."""
    return breadth_first(tree, depth) if tree[0] < 0 else from_widths(tree[:depth])


def max_depth(speculation: SpeculationParams, *, adaptive: bool) -> int:
    """The most levels of a draft: ``spec_length``, with ``auto`` resolved.

    ``adaptive``: whether the engine may choose the number of nodes to score.
    """
    if speculation.spec_length != "auto":
        return speculation.spec_length
    if isinstance(speculation.tree, tuple):
        return len(speculation.tree)  # at least the levels of the shape
    levelled = speculation.tree in ("dynamic", "learned") or any(
        source_record(name).shape.branches for name in speculation.combination.names
    )
    return AUTO_LENGTH if adaptive and not levelled else FIXED_LENGTH


def max_nodes(speculation: SpeculationParams, depth: int) -> int:
    """The most nodes of a draft of at most ``depth`` levels, over all of the request's sources."""
    groups = speculation.combination.groups or (("none",),)
    wanted = max(nodes_by(name, speculation, depth) for group in groups for name in group)
    merged = any(len(group) > 1 for group in groups) and speculation.verifier not in CHAIN_VERIFIERS
    return max(wanted, speculation.tree_nodes) if merged and wanted else wanted


def nodes_by(source: str, speculation: SpeculationParams, depth: int) -> int:
    """The most nodes of one source's draft of at most ``depth`` levels."""
    if depth < 1:
        return 0
    shape = source_record(source).shape
    if shape is DraftShape.LOOKAHEAD:
        window, ngram, guesses = speculation.lookahead_shape
        return (window + guesses) * (ngram - 1)
    if shape is DraftShape.GROWING:
        return depth if speculation.verifier in CHAIN_VERIFIERS else max(depth, speculation.tree_nodes)
    if shape is DraftShape.CHAIN:
        return depth
    if isinstance(speculation.tree, tuple):
        return len(static_shape(speculation.tree, depth))
    if speculation.tree in ("dynamic", "learned") or shape is DraftShape.MERGED:
        return speculation.tree_nodes
    return depth


def expected_accepted(shape: Sequence[int], acceptance: Sequence[float]) -> float:
    """The expected length of the accepted path if a visited node's r-th child is kept with ``acceptance[r]``."""
    reached = [1.0]  # the probability of visiting the root, then each node
    rank = [0] * (len(shape) + 1)  # the number of children so far of the root, then of each node
    for parent in shape:
        r = rank[parent + 1]
        rank[parent + 1] += 1
        reached.append(reached[parent + 1] * (acceptance[r] if r < len(acceptance) else 0.0))
    return sum(reached[1:])


def optimal(acceptance: Sequence[float], nodes: int, depth: int) -> Shape:
    """The shape of at most ``nodes`` nodes and ``depth`` levels with the longest expected accepted path.

    Sequoia's dynamic programme (Chen et al. 2024, "Sequoia: scalable, robust, and hardware-aware speculative
    decoding", section 4.1). The value of a node's children from rank r on, with n nodes for their subtrees, is

        V(d, r, n) = max over m = 1..n of  a_r (1 + V(d - 1, 0, m - 1)) + V(d, r + 1, n - m)

    where child r is kept with probability ``a_r``, its subtree has m nodes, and its later siblings' have n - m.
    Optimal for any ``acceptance``, even if a later rank is likelier than an earlier rank.

    Args:
        acceptance: how often the r-th child of a visited node is accepted (``RankAcceptance.rates``).
    """

    @cache
    def best(levels: int, rank: int, n: int) -> tuple[float, int]:
        """The value, and the nodes of the subtree of the child of this rank; 0 for no child."""
        if levels == 0 or n == 0 or rank == len(acceptance):
            return 0.0, 0
        value, most = 0.0, 0
        for m in range(1, n + 1):
            found = acceptance[rank] * (1 + best(levels - 1, 0, m - 1)[0]) + best(levels, rank + 1, n - m)[0]
            if found > value:
                value, most = found, m
        return value, most

    parents: list[int] = []
    level = [(-1, nodes)]  # nodes of this level, each with the number of nodes for its subtree
    for levels in range(depth, 0, -1):
        following: list[tuple[int, int]] = []
        for node, n in level:
            rank = 0
            while (m := best(levels, rank, n)[1]) > 0:
                following.append((len(parents), m - 1))
                parents.append(node)
                n -= m
                rank += 1
        level = following
    return tuple(parents)


@lru_cache(maxsize=64)
def likeliest(acceptance: Acceptance, nodes: int, depth: int) -> Shape:
    """The shape of at most ``nodes`` nodes and ``depth`` levels with the likeliest nodes, from rates by depth and rank.

    A node's probability is the product of the rates along its path, as if guesses at different depths were independent
    (Medusa, Cai et al. 2024, section 2.3.3, "optimized tree construction"). No child is likelier than its parent, so
    the likeliest nodes form a tree.
    """
    parents: list[int] = []
    heap: list[tuple[float, int, int, int]] = []  # -chance, parent, level, rank

    def offer(above: float, parent: int, level: int, rank: int) -> None:
        if level < min(depth, len(acceptance)) and rank < len(acceptance[level]):
            heapq.heappush(heap, (-above * acceptance[level][rank], parent, level, rank))

    reached = {-1: 1.0}
    offer(1.0, -1, 0, 0)
    while heap and len(parents) < nodes:
        chance, parent, level, rank = heapq.heappop(heap)
        node = len(parents)
        parents.append(parent)
        reached[node] = -chance
        offer(-chance, node, level + 1, 0)
        offer(reached[parent], parent, level, rank + 1)
    return breadth_first(parents, depth)


@dataclass
class RankAcceptance:
    """Measures how often the r-th child of a visited node was accepted."""

    visited: list[int] = field(default_factory=list)  # visited nodes with a child of rank r
    accepted: list[int] = field(default_factory=list)

    def observe(self, draft: Draft, path: Sequence[int]) -> None:
        """Count one draft and its accepted path."""
        below = children(draft.parents)
        for node, child in zip((-1, *path), (*path, None), strict=True):
            siblings = below[1 + node]
            self._widen(len(siblings))
            for rank, sibling in enumerate(siblings):
                self.visited[rank] += 1
                self.accepted[rank] += sibling == child

    def add(self, other: RankAcceptance) -> None:
        """Add the counts of ``other``."""
        self._widen(len(other.visited))
        for rank, (visited, accepted) in enumerate(zip(other.visited, other.accepted, strict=True)):
            self.visited[rank] += visited
            self.accepted[rank] += accepted

    def _widen(self, ranks: int) -> None:
        missing = ranks - len(self.visited)
        self.visited += [0] * missing
        self.accepted += [0] * missing

    @property
    def rates(self) -> list[float]:
        """The acceptance rate of each rank, for ``optimal``."""
        return [a / v for a, v in zip(self.accepted, self.visited, strict=True)]
