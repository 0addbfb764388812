"""Which nodes are scored: held against every choice there is."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Sequence
from typing import Any

import pytest

from outrider.cache import KVCache
from outrider.engine.adaptive.cost import ForwardPassCost, calibrate
from outrider.engine.adaptive.overhead import StepOverhead
from outrider.engine.adaptive.selection import Proposal, select_nodes
from outrider.engine.adaptive.settings import DEFAULT_SETTINGS, AdaptiveSettings
from outrider.models.batch import ForwardBatch, ForwardOutput
from outrider.verify.tree import leaves
from tests import small_models

ROWS = DEFAULT_SETTINGS.measured_rows
CONTEXT = 500
OVERHEAD = StepOverhead()
SMOOTH = [0.0100 + 0.0004 * n for n in ROWS]


def rate(proposal: Proposal, kept: Sequence[int], curve: ForwardPassCost) -> float:
    """Tokens a second of one request that keeps these nodes."""
    place = {node: i for i, node in enumerate(kept)} | {-1: -1}
    branches = max(0, leaves([place[proposal.parents[node]] for node in kept]) - 1)
    expected = 1 + sum(proposal.probabilities[node] for node in kept)
    outside = OVERHEAD.plain(1) + (OVERHEAD.drafting if kept else 0.0)
    return expected / (curve.seconds([1 + len(kept)], [CONTEXT]) + branches * curve.branch(CONTEXT) + outside)


def grown(seed: int) -> Proposal:
    rng = random.Random(seed)
    parents = [rng.randint(max(-1, i - 3), i - 1) for i in range(7)]
    probabilities: list[float] = []
    left = {-1: 1.0}  # of a parent's chance, which its children share
    for node, parent in enumerate(parents):
        probabilities.append(rng.random() * left[parent])
        left[parent] -= probabilities[node]
        left[node] = probabilities[node]
    return Proposal(parents, probabilities, max_nodes=7)


@pytest.mark.parametrize("branch", [0.0, 1e-3, 4e-3, 1.0])
@pytest.mark.parametrize("seed", range(12))
def test_close_to_the_best_of_all_choices(branch: float, seed: int) -> None:
    curve = ForwardPassCost(SMOOTH, [0.0] * len(ROWS), (branch, 0.0))
    proposal = grown(seed)
    nodes = range(len(proposal.parents))
    closed = [
        kept
        for n in range(len(nodes) + 1)
        for kept in itertools.combinations(nodes, n)
        if all(proposal.parents[node] in (-1, *kept) for node in kept)
    ]
    best = max(rate(proposal, kept, curve) for kept in closed)
    found = select_nodes({0: proposal}, [1], [CONTEXT], curve, OVERHEAD).get(0, [])
    assert tuple(found) in closed
    assert rate(proposal, found, curve) >= 0.9 * best
    assert rate(proposal, found, curve) >= rate(proposal, (), curve)


def test_branches_are_left_where_they_cost_more_than_they_bring() -> None:
    fork = Proposal((-1, -1, 0, 1), (0.6, 0.35, 0.5, 0.3), max_nodes=4)
    free, dear = (ForwardPassCost(SMOOTH, [0.0] * len(ROWS), (cost, 0.0)) for cost in (0.0, 0.01))
    assert select_nodes({0: fork}, [1], [CONTEXT], free, OVERHEAD) == {0: [0, 1, 2, 3]}
    assert select_nodes({0: fork}, [1], [CONTEXT], dear, OVERHEAD) == {0: [0, 2]}


def test_no_more_than_asked_for() -> None:
    flat = ForwardPassCost([0.01] * len(ROWS), [0.0] * len(ROWS))
    chain = Proposal((-1, 0, 1, 2), (0.9, 0.8, 0.7, 0.6), max_nodes=2)
    assert select_nodes({0: chain, 1: chain}, [1, 1], [CONTEXT] * 2, flat, OVERHEAD) == {0: [0, 1], 1: [0, 1]}


def test_a_branch_s_cost_is_measured_and_grows_with_the_context() -> None:
    curve = calibrate(small_models.llama(), AdaptiveSettings(calibration_seconds=0.05))
    assert 0 <= curve.branch(64) <= curve.branch(400) < 1
    without = curve.seconds([4], [64])
    for _ in range(200):  # a run that is slower by what its branches cost teaches nothing about rows
        curve.observe([4], [64], [2], without + 2 * curve.branch(64))
    assert curve.seconds([4], [64]) == pytest.approx(without, rel=0.02)


@pytest.mark.parametrize("slow", [0, 1])
def test_a_pass_that_was_disturbed_does_not_make_all_longer_ones_dear(slow: int, monkeypatch: Any) -> None:
    """The first one reads weights from disk; another may find the machine busy."""
    model, passes = small_models.llama(), itertools.count()
    forward = model.forward

    def disturbed(batch: ForwardBatch, cache: KVCache) -> ForwardOutput:
        if next(passes) == slow:
            time.sleep(0.3)
        return forward(batch, cache)

    monkeypatch.setattr(model, "forward", disturbed)
    curve = calibrate(model, AdaptiveSettings(calibration_seconds=0.0))  # each size is timed once
    assert curve.seconds([1], [64]) < 0.15
    assert curve.seconds([32], [64]) < 0.15
