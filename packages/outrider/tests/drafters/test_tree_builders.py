"""Trees in the making: static shapes, and the best nodes under a budget."""

from __future__ import annotations

import heapq
import math
import random

import pytest

from outrider.config import SpeculationParams
from outrider.drafters.trees.builders import (
    Choices,
    DynamicTreeBuilder,
    StaticTreeBuilder,
    make_tree_builder,
    tokens_to,
)
from outrider.verify.draft import EMPTY
from outrider.verify.tree import depths


def grown(tree: StaticTreeBuilder | DynamicTreeBuilder, vocab: int, scores: list[float]) -> None:
    """Behind every node come tokens 0, 1, ... with these scores."""
    while tree.frontier:
        tree.extend([Choices(range(vocab)[: tree.width(n)], scores[: tree.width(n)]) for n in tree.frontier])


def test_a_static_tree_takes_its_shape() -> None:
    tree = StaticTreeBuilder((-1, -1, 0, 0, 1))
    assert [tree.width(-1), tree.key(-1)] == [2, 0]
    tree.extend([Choices([7, 8])])
    assert tree.frontier == [0, 1]
    assert [(tree.width(n), tree.key(n)) for n in tree.frontier] == [(2, 2), (1, 4)]
    tree.extend([Choices([1, 2]), Choices([3])])
    assert tree.frontier == []
    draft = tree.draft("test")
    assert (draft.tokens, draft.parents) == ((7, 8, 1, 2, 3), (-1, -1, 0, 0, 1))
    assert draft.q_logits is None
    assert tokens_to(tree, 4) == [8, 3]


def test_branches_end_where_fewer_tokens_are_possible() -> None:
    tree = StaticTreeBuilder((-1, -1, -1, 0, 1, 2))
    tree.extend([Choices([4])])
    assert tree.frontier == [0]
    assert tree.key(0) == 3
    tree.extend([Choices([])])
    assert tree.frontier == []
    assert tree.draft("test").tokens == (4,)
    nothing = StaticTreeBuilder((-1,))
    nothing.extend([Choices([])])
    assert nothing.draft("test") is EMPTY


def test_short_budgets_cut_a_static_tree_breadth_first() -> None:
    whole = make_tree_builder(SpeculationParams(tree=(3, 2)), 9, 5)
    short = make_tree_builder(SpeculationParams(tree=(3, 2)), 5, 5)
    for tree in (whole, short):
        while tree.frontier:
            tree.extend([Choices(range(tree.width(n))) for n in tree.frontier])
    assert whole.parents == [-1, -1, -1, 0, 0, 1, 1, 2, 2]
    assert short.parents == [-1, -1, -1, 0, 0]
    assert make_tree_builder(SpeculationParams(), 4, 4).width(-1) == 1  # a chain is a shape too


def best_first(vocab: int, nodes: int, depth: int, score: dict[tuple[int, ...], float]) -> set[tuple[int, ...]]:
    """The most likely paths, by expanding one at a time."""
    found: set[tuple[int, ...]] = set()
    heap: list[tuple[float, tuple[int, ...]]] = [(-score[(t,)], (t,)) for t in range(vocab)]
    heapq.heapify(heap)
    while heap and len(found) < nodes:
        _, path = heapq.heappop(heap)
        found.add(path)
        if len(path) < depth:
            for t in range(vocab):
                heapq.heappush(heap, (-score[(*path, t)], (*path, t)))
    return found


@pytest.mark.parametrize("seed", range(10))
def test_a_dynamic_tree_has_the_most_likely_nodes(seed: int) -> None:
    """As many as asked for, the same as a search that expands the best node one by one."""
    rng = random.Random(seed)
    vocab, depth, nodes = 3, 4, rng.randint(1, 12)
    score: dict[tuple[int, ...], float] = {}

    def choices(path: tuple[int, ...]) -> Choices:
        p = [rng.random() ** 3 for _ in range(vocab)]
        logs = [math.log(x / sum(p)) for x in p]
        for t, x in enumerate(logs):
            score[(*path, t)] = score.get(path, 0.0) + x
        order = sorted(range(vocab), key=lambda t: -logs[t])
        return Choices(order, [logs[t] for t in order])

    scorer: dict[tuple[int, ...], Choices] = {}

    def all_choices(path: tuple[int, ...]) -> None:
        if len(path) < depth:
            scorer[path] = choices(path)
            for t in range(vocab):
                all_choices((*path, t))

    all_choices(())
    tree = DynamicTreeBuilder(nodes, depth)
    looked = 0
    while tree.frontier:
        assert len(tree.frontier) <= nodes
        looked += len(tree.frontier)
        tree.extend([scorer[tuple(tokens_to(tree, n))] for n in tree.frontier])
    draft = tree.draft("test")
    paths = set()
    for node in range(len(draft)):
        path: list[int] = []
        at = node
        while at >= 0:
            path.append(draft.tokens[at])
            at = draft.parents[at]
        paths.add(tuple(path[::-1]))
    assert paths == best_first(vocab, nodes, depth, score)
    assert looked <= 1 + nodes * (depth - 1)


def test_equal_scores_keep_parents() -> None:
    tree = DynamicTreeBuilder(3, 5)
    grown(tree, 1, [0.0])  # certain at every level
    assert tree.draft("test").parents == (-1, 0, 1)


def test_impossible_and_nameless_scores_are_left_out() -> None:
    tree = DynamicTreeBuilder(8, 1)
    tree.extend([Choices([1, 2, 3], [-0.5, -math.inf, math.nan])])
    assert tree.draft("test").tokens == (1,)
    assert tree.frontier == []


def test_depth_limits_a_dynamic_tree() -> None:
    tree = DynamicTreeBuilder(10, 2)
    grown(tree, 2, [math.log(0.9), math.log(0.1)])
    assert sorted(depths(tree.draft("test").parents)) == [0, 0, 1, 1, 1, 1]
    for tree in (DynamicTreeBuilder(0, 4), DynamicTreeBuilder(4, 0)):
        assert tree.frontier == []
        assert tree.draft("test") is EMPTY
