"""Which nodes are scored: held against every choice there is."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence

import pytest

from outrider.engine.draft_length.cost import StepCost
from outrider.engine.draft_length.row_counts import ROWS
from outrider.engine.draft_length.selection import Proposal, least_probability, select_nodes
from outrider.verify.draft import Draft

CONTEXT = 500
SMOOTH = StepCost([0.0100 + 0.0004 * n for n in ROWS], [0.0] * len(ROWS))


def proposal(
    parents: Sequence[int], probabilities: Sequence[float], *, max_nodes: int = 9, left_s: float = math.inf
) -> Proposal:
    draft = Draft(tuple(range(len(parents))), tuple(parents), source="source")
    return Proposal(draft, probabilities, max_nodes, {"source": left_s})


def rate(each: Proposal, kept: Sequence[int], cost: StepCost) -> float:
    """Tokens a second of one request that keeps these nodes."""
    expected = 1 + sum(each.probabilities[node] for node in kept)
    outside = cost.outside(1) + (cost.drafting if kept else 0.0)
    return expected / (cost.pass_seconds([1 + len(kept)], [CONTEXT]) + outside)


def grown(seed: int) -> Proposal:
    rng = random.Random(seed)
    parents = [rng.randint(max(-1, i - 3), i - 1) for i in range(7)]
    probabilities: list[float] = []
    left = {-1: 1.0}  # of a parent's chance, which its children share
    for node, parent in enumerate(parents):
        probabilities.append(rng.random() * left[parent])
        left[parent] -= probabilities[node]
        left[node] = probabilities[node]
    return proposal(parents, probabilities)


@pytest.mark.parametrize("row_s", [0.0, 2e-4, 1e-3, 4e-3])
@pytest.mark.parametrize("seed", range(12))
def test_the_best_of_all_choices(row_s: float, seed: int) -> None:
    cost = StepCost([0.0100 + row_s * n for n in ROWS], [0.0] * len(ROWS))
    each = grown(seed)
    nodes = range(len(each.probabilities))
    closed = [
        kept
        for n in range(len(nodes) + 1)
        for kept in itertools.combinations(nodes, n)
        if all(each.draft.parents[node] in (-1, *kept) for node in kept)
    ]
    found = tuple(select_nodes({0: each}, [1], [CONTEXT], cost).get(0, {}))
    assert found in closed
    assert rate(each, found, cost) == pytest.approx(max(rate(each, kept, cost) for kept in closed))


def test_what_nodes_add_to_the_step_is_told() -> None:
    added = select_nodes({0: proposal((-1, 0), (0.9, 0.8))}, [1], [CONTEXT], SMOOTH)[0]
    assert added == {0: pytest.approx(0.0004 + SMOOTH.drafting), 1: pytest.approx(0.0004)}


def test_no_more_than_asked_for() -> None:
    chain = proposal((-1, 0, 1, 2), (0.9, 0.8, 0.7, 0.6), max_nodes=2)
    chosen = select_nodes({0: chain, 1: chain}, [1, 1], [CONTEXT] * 2, SMOOTH)
    assert {i: list(nodes) for i, nodes in chosen.items()} == {0: [0, 1], 1: [0, 1]}


def test_no_more_than_can_be_paid() -> None:
    """A first node takes 0.5 ms, and each other 0.4."""
    for left_s, count in ((0.0004, 0), (0.0006, 1), (0.0010, 2), (0.0020, 4)):
        chain = proposal((-1, 0, 1, 2), (0.9, 0.8, 0.7, 0.6), left_s=left_s)
        assert len(select_nodes({0: chain}, [1], [CONTEXT], SMOOTH).get(0, {})) == count


def test_a_source_that_cannot_pay_leaves_the_others_their_nodes() -> None:
    draft = Draft((1, 2, 3), (-1, -1, 0), sources=("poor", "rich", "rich"))
    each = Proposal(draft, (0.6, 0.3, 0.5), 9, {"poor": 0.0, "rich": 1.0})
    assert list(select_nodes({0: each}, [1], [CONTEXT], SMOOTH)[0]) == [1]


@pytest.mark.parametrize("slope", [0.0, 4e-7])
@pytest.mark.parametrize("margin", [1.0, 1.5])
@pytest.mark.parametrize("requests", [1, 3, 8, 20])
def test_no_node_is_kept_below_the_least_probability(requests: int, margin: float, slope: float) -> None:
    """Also where passes of some numbers of rows have turned out slower, and others faster, than timed."""
    kept = close = 0
    for seed in range(120):
        rng = random.Random(seed)
        row_s = rng.choice((1e-5, 3e-4, 1e-3))
        slopes = [slope * (1 + rng.choice((0.02, 0.5)) * n) for n in ROWS]
        cost = StepCost([0.010 + row_s * n for n in ROWS], slopes)
        cost.drafting = 0.0
        for _ in range(10):
            cost.observe_pass([1] * rng.choice(ROWS), [CONTEXT], rng.uniform(0.5, 2.0) * 0.012)
        contexts = [rng.choice((0, CONTEXT, 20_000)) if seed % 2 else CONTEXT for _ in range(requests)]
        plain_s = cost.plain(contexts)
        least = least_probability(cost, contexts, plain_s, margin)
        probability = min(1.0, rng.uniform(0.0, 1.2) * least)
        chain = proposal((-1, 0, 1, 2), [probability] * 4)
        chosen = select_nodes(dict.fromkeys(range(requests), chain), [1] * requests, contexts, cost, margin=margin)
        kept += bool(chosen)
        close += 0.9 < probability / max(least, 1e-9) <= 1.0
        assert not chosen or probability > least
    assert kept
    assert close


def test_long_contexts_in_which_more_rows_are_read_faster_lower_the_least_probability() -> None:
    """Passes of two rows have turned out faster than timed, and there the context is most of them."""
    cost = StepCost([0.010 + 3e-4 * n for n in ROWS], [4e-7] * len(ROWS))
    for _ in range(3):
        cost.observe_pass([2], [CONTEXT], 0.004)
    contexts = [100_000]
    assert cost.row(1, 1, contexts[0]) < cost.row(1, 1, 0)
    assert cost.cheapest_row(1, contexts[0]) <= cost.row(1, 1, contexts[0])
    assert cost.cheapest_row(1, 0) > cost.cheapest_row(1, contexts[0])


def test_the_least_probability_is_that_of_a_row_that_costs_as_much_as_it_brings() -> None:
    cost = StepCost([0.001 * n for n in ROWS], [0.0] * len(ROWS))
    cost.drafting = 0.0
    plain_s = cost.plain([0] * 4)
    least = least_probability(cost, [0] * 4, plain_s)
    assert least == pytest.approx(4 * 0.001 / plain_s)
    for probability, count in ((0.999 * least, 0), (1.001 * least, 1)):
        chosen = select_nodes({2: proposal((-1,), (probability,))}, [1] * 4, [0] * 4, cost)
        assert sum(map(len, chosen.values())) == count
