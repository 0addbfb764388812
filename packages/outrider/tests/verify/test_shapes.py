"""Shapes of trees: widths, order, shortening, and Sequoia's optimum against enumeration."""

from __future__ import annotations

import random

import pytest

from outrider.config import SpeculationParams
from outrider.verify.draft import Draft
from outrider.verify.shapes import (
    RankAcceptance,
    breadth_first,
    expected_accepted,
    from_widths,
    max_nodes,
    optimal,
    static_shape,
)
from outrider.verify.tree import depths


def test_widths() -> None:
    assert from_widths((2, 1)) == (-1, -1, 0, 1)
    assert from_widths((1, 1, 1)) == (-1, 0, 1)
    assert from_widths((2, 3)) == (-1, -1, 0, 0, 0, 1, 1, 1)
    assert from_widths(()) == ()


def test_any_order_becomes_breadth_first() -> None:
    """
    depth first    0 ── 1 ── 2      breadth first    0 ── 2 ── 4
                   │    └── 3                        │    └── 5
                   4 ── 5                            1 ── 3
    """
    parents = (-1, 0, 1, 1, -1, 4)
    assert breadth_first(parents, 3) == (-1, -1, 0, 1, 2, 2)
    assert breadth_first(parents, 2) == (-1, -1, 0, 1)
    assert breadth_first(parents, 0) == ()
    assert breadth_first((-1, -1, 0, 1, 2, 2), 9) == (-1, -1, 0, 1, 2, 2)


def test_a_beginning_of_a_shape_is_a_shape() -> None:
    shape = from_widths((3, 2, 1))
    assert len(shape) == 15
    for n in range(len(shape) + 1):
        assert all(parent < i for i, parent in enumerate(shape[:n]))
        assert sorted(depths(shape[:n])) == depths(shape[:n])


@pytest.mark.parametrize(
    ("options", "depth", "nodes"),
    [
        ({}, 5, 5),
        ({}, 0, 0),
        ({"tree": (4, 2, 1)}, 5, 20),
        ({"tree": "4,2,1"}, 2, 12),
        ({"tree": (-1, 0, 0, -1)}, 1, 2),
        ({"tree": "dynamic"}, 3, 16),
        ({"tree": "dynamic", "tree_nodes": 9}, 3, 9),
        ({"tree": "dynamic"}, 0, 0),
        ({"draft": "models"}, 3, 16),
        ({"draft": "models", "tree": (2, 2)}, 3, 6),
        ({"draft": "lookahead", "lookahead": (4, 3, 2)}, 1, 12),
    ],
)
def test_nodes_of_a_whole_draft(options: dict[str, object], depth: int, nodes: int) -> None:
    assert max_nodes(SpeculationParams(**options), depth) == nodes  # type: ignore[arg-type]


def test_static_shapes_stop_at_the_depth() -> None:
    assert static_shape((2, 1, 1), 2) == (-1, -1, 0, 1)
    assert static_shape((-1, 0, 1, -1), 2) == (-1, -1, 0)


def test_expected_accepted_by_hand() -> None:
    """a = (0.6, 0.3): children of the root 0.6 and 0.3, the first's children 0.36 and 0.18."""
    assert expected_accepted((-1, -1, 0, 0), (0.6, 0.3)) == pytest.approx(0.6 + 0.3 + 0.36 + 0.18)
    assert expected_accepted((-1, -1, -1), (0.6, 0.3)) == pytest.approx(0.9)


def all_shapes(nodes: int) -> list[tuple[int, ...]]:
    """Every shape of exactly so many nodes: parents never decrease in breadth-first order."""
    shapes: list[tuple[int, ...]] = [()]
    for i in range(nodes):
        shapes = [(*s, parent) for s in shapes for parent in range(s[-1] if s else -1, i)]
    return shapes


@pytest.mark.parametrize("seed", range(12))
def test_the_optimum_is_that_of_all_trees(seed: int) -> None:
    """Against brute force; half of the acceptance vectors do not fall with the rank."""
    rng = random.Random(seed)
    acceptance = [rng.random() / 2 for _ in range(rng.randint(1, 4))]
    if seed % 2:
        acceptance.sort(reverse=True)
    for nodes in range(7):
        for depth in (1, 2, 3, 7):
            found = optimal(acceptance, nodes, depth)
            assert len(found) <= nodes
            assert breadth_first(found, depth) == found
            shapes = [s for s in all_shapes(nodes) if max(depths(s), default=0) < depth]
            best = max((expected_accepted(s, acceptance) for s in shapes), default=0.0)
            if shapes:
                assert expected_accepted(found, acceptance) == pytest.approx(best)


def test_sure_acceptance_makes_a_chain_and_none_makes_nothing() -> None:
    assert optimal([1.0, 0.5], 5, 9) == (-1, 0, 1, 2, 3)
    assert optimal([0.0], 5, 9) == ()
    assert optimal([0.5], 5, 2) == (-1, 0)  # no second child is ever right
    assert len(optimal([0.7, 0.15, 0.06, 0.03], 64, 8)) == 64


def test_acceptance_by_rank() -> None:
    """
    root ── 0 ── 2      accepted 1, then 4 of its two children; below 4 nothing was drafted
         └── 1 ── 3
              └── 4
    """
    draft = Draft((5, 6, 7, 8, 9), (-1, -1, 0, 1, 1))
    measured = RankAcceptance()
    measured.observe(draft, (1, 4))
    assert (measured.visited, measured.accepted) == ([2, 2], [0, 2])
    measured.observe(Draft.chain([1, 2]), (0,))
    assert (measured.visited, measured.accepted) == ([4, 2], [1, 2])
    assert measured.rates == [0.25, 1.0]
    both = RankAcceptance([1], [1])
    both.add(measured)
    assert (both.visited, both.accepted) == ([5, 2], [2, 2])
