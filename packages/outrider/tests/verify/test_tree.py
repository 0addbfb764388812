"""Parent links: leaves, and the order in which the longest path is in one piece."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from outrider.verify.tree import ancestor_mask, depths, leaves, longest_first, path_to


@st.composite
def trees(draw: st.DrawFn) -> list[int]:
    n = draw(st.integers(0, 24))
    return [draw(st.integers(-1, i - 1)) for i in range(n)]


def test_the_examples() -> None:
    assert leaves((-1, 0, 0, 1)) == 2
    assert longest_first((-1, 0, 0, 2)) == [0, 2, 3, 1]
    assert longest_first((-1, -1, 0, 1)) == [0, 2, 1, 3]  # of equals, the first
    assert (leaves(()), longest_first(())) == (0, [])


@given(trees())
def test_every_node_once_behind_its_parent_and_the_longest_path_first(parents: list[int]) -> None:
    order = longest_first(parents)
    place = {node: at for at, node in enumerate(order)}
    assert sorted(order) == list(range(len(parents)))
    assert all(place[parent] < place[node] for node, parent in enumerate(parents) if parent >= 0)
    longest = max((depth + 1 for depth in depths(parents)), default=0)
    assert order[:longest] == (path_to(parents, order[longest - 1]) if order else [])


@given(trees())
def test_a_node_sees_itself_and_its_ancestors_and_its_depth_counts_them(parents: list[int]) -> None:
    paths = [path_to(parents, node) for node in range(len(parents))]
    assert [np.flatnonzero(row).tolist() for row in ancestor_mask(parents)] == paths
    assert depths(parents) == [len(path) - 1 for path in paths]


@given(trees())
def test_leaves_are_the_nodes_that_are_nobody_s_parent(parents: list[int]) -> None:
    assert leaves(parents) == sum(node not in parents for node in range(len(parents)))
