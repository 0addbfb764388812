"""Best-first draft trees, for sources that know the probability of every token."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import TypeVar

from outrider.verify.draft import EMPTY, Draft

State = TypeVar("State")
Children = Iterable[tuple[int, float, State]]  # token, its probability given its parent, and its state for ``expand``


def best_first(
    source: str,
    root: State,
    expand: Callable[[State], Children[State]],
    *,
    budget: int,
    depth: int,
    least: float,
    enough: Callable[[int, float], bool] = lambda nodes, probability: False,
) -> Draft:
    """The likeliest tree of at most ``budget`` nodes and ``depth`` levels that ``expand`` unfolds from ``root``.

    A node's probability is the product of the probabilities along its path. Ties go to the node found first.

    Args:
        expand: the children of a node, given its state; at most one child if the draft must not branch.
        least: only nodes with a probability above this are taken.
        enough: whether the tree ends, given its number of nodes and the probability of the next node.
    """
    tokens: list[int] = []
    parents: list[int] = []
    scores: list[float] = []
    heap: list[tuple[float, int, float, int, int, int, State]] = []
    order = 0  # distinct for each heap entry, so that states are never compared

    def offer(node: int, probability: float, level: int, state: State) -> None:
        nonlocal order
        for token, share, behind in expand(state):
            if probability * share > least:
                order += 1
                heapq.heappush(heap, (-probability * share, order, share, node, token, level, behind))

    if budget > 0 and depth > 0:
        offer(-1, 1.0, 1, root)
    while heap and len(tokens) < budget:
        negative, _, share, parent, token, level, state = heapq.heappop(heap)
        if enough(len(tokens), -negative):
            break
        tokens.append(token)
        parents.append(parent)
        scores.append(share)
        if level < depth and len(tokens) < budget:
            offer(len(tokens) - 1, -negative, level + 1, state)
    return Draft(tuple(tokens), tuple(parents), None, source, tuple(scores)) if tokens else EMPTY
