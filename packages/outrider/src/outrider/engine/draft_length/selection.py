"""Which nodes of the proposed trees are scored: those, the likeliest first, that give the most tokens a second.

    n = argmax (requests + sum of the probabilities of the best n nodes) / seconds of a step with n nodes more

No child is likelier than its parent, and so the best nodes form trees.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from outrider.engine.draft_length.cost import StepCost
from outrider.verify.draft import Draft


@dataclass(frozen=True)
class Proposal:
    """A request's tree."""

    draft: Draft
    probabilities: Sequence[float]  # of each node to be accepted, no more than its parent's
    max_nodes: int  # to select
    affordable_s: Mapping[
        str, float
    ]  # by source: seconds that its nodes may take; those of no other source are the first's


def least_probability(cost: StepCost, contexts: Sequence[int], plain_s: float, margin: float = 1.0) -> float:
    """The probability that a node must exceed for ``select_nodes`` to keep any, in a step of a row for each context.

    Each node adds at least the cheapest row beyond these, and together they must add more tokens in that time than a
    step without them. ``plain_s``: seconds of that step.
    """
    requests = len(contexts)
    return margin * requests * cost.cheapest_row(requests, max(contexts)) / plain_s if plain_s else 0.0


def select_nodes(
    proposals: Mapping[int, Proposal],
    num_tokens: Sequence[int],
    contexts: Sequence[int],
    cost: StepCost,
    most_s: float = math.inf,
    margin: float = 1.0,
) -> dict[int, dict[int, float]]:
    """By request, the nodes to score in ascending order, and the seconds that each adds to the step.

    Args:
        proposals: by the number of the request.
        num_tokens: rows that come with each request in any case.
        contexts: tokens each request looks back on.
        cost: what a step takes.
        most_s: seconds that all nodes together may add to the step.
    """
    nodes = [(-p, i, node) for i, each in proposals.items() for node, p in enumerate(each.probabilities)]
    nodes.sort()
    rows, total, expected = list(num_tokens), sum(num_tokens), float(len(num_tokens))
    seconds = cost.pass_seconds(rows, contexts) + cost.outside(len(rows))
    plain_s, best, count = seconds, expected / seconds, 0
    taken: list[tuple[int, int, float]] = []
    reached = {(i, -1) for i in proposals}
    spent: dict[tuple[int, str], float] = {}
    for probability, i, node in nodes:
        proposal, own = proposals[i], rows[i]
        if (i, proposal.draft.parents[node]) not in reached or own - num_tokens[i] >= proposal.max_nodes:
            continue
        added = cost.row(total, own, contexts[i]) + (cost.drafting if own == num_tokens[i] else 0.0)
        source = proposal.draft.source_of(node)
        if source not in proposal.affordable_s:
            source = next(iter(proposal.affordable_s))
        paid = spent[i, source] = spent.get((i, source), 0.0) + added
        if added > most_s - (seconds - plain_s) or paid > proposal.affordable_s[source]:
            continue  # nor can its children be paid
        rows[i], total = own + 1, total + 1
        reached.add((i, node))
        taken.append((i, node, added))
        expected, seconds = expected - probability, seconds + added  # probabilities are negative, to sort by
        value = expected / (plain_s + margin * (seconds - plain_s))
        if value > best:
            best, count = value, len(taken)
    selected: dict[int, dict[int, float]] = {}
    for i, node, added in sorted(taken[:count]):
        selected.setdefault(i, {})[node] = added
    return selected
