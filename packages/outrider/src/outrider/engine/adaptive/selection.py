"""Which nodes of the proposed trees are scored: those, the likeliest first, that give the most tokens a second.

    n = argmax (requests + Σ probabilities of the best n nodes) / T(requests + n rows, their branches)

A branch costs more than its rows (``engine.adaptive.cost``). So the likeliest nodes are tried twice: along one path of
each request alone, and with those branches that bring more than they cost at the rate of the paths alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from outrider.engine.adaptive.cost import ForwardPassCost
from outrider.engine.adaptive.overhead import StepOverhead

Selection = dict[int, list[int]]
"""Nodes by request, ascending."""


@dataclass(frozen=True)
class Proposal:
    """A request's tree: each node's parent, and its probability to be accepted, no more than its parent's."""

    parents: Sequence[int]
    probabilities: Sequence[float]
    max_nodes: int  # to select

    def branch_points(self) -> dict[int, float]:
        """The nodes at which a branch begins, and the tokens that each can be expected to bring with all below it.

        Of the children of a node the one that brings most continues the path, the others are branches.
        """
        if len(set(self.parents)) == len(self.parents):
            return {}  # a chain
        totals = list(self.probabilities)
        ahead: dict[int, int] = {}  # the best child
        for node in reversed(range(len(totals))):
            parent = self.parents[node]
            if parent >= 0:
                totals[parent] += totals[node]
            if parent not in ahead or totals[node] >= totals[ahead[parent]]:
                ahead[parent] = node
        return {node: total for node, total in enumerate(totals) if ahead[self.parents[node]] != node}


def select_nodes(
    proposals: Mapping[int, Proposal],
    num_tokens: Sequence[int],
    contexts: Sequence[int],
    cost: ForwardPassCost,
    overhead: StepOverhead,
) -> Selection:
    """The nodes to score of each request's proposal.

    Args:
        proposals: by the number of the request.
        num_tokens: rows that come with each request in any case.
        contexts: tokens each request looks back on.
        overhead: of the step, outside the forward pass.
    """
    nodes: list[tuple[float, int, int]] = []  # probability, request, node
    for i, proposal in proposals.items():
        # A parent's probability is no less than its child's, and its number is smaller.
        likeliest = sorted((-probability, i, node) for node, probability in enumerate(proposal.probabilities))
        nodes += likeliest[: proposal.max_nodes]
    if len(proposals) > 1:
        nodes.sort()
    branch_points = {i: proposal.branch_points() for i, proposal in proposals.items()}
    scan = _Scan(proposals, branch_points, nodes, num_tokens, contexts, cost, overhead)
    rate, selected = scan.best(dict.fromkeys(proposals, math.inf))
    if any(branch_points.values()):
        faster, more = scan.best({i: rate * cost.branch(contexts[i]) for i in proposals})
        selected = more if faster > rate else selected
    return {i: sorted(own) for i, own in selected.items()}


@dataclass(frozen=True)
class _Scan:
    proposals: Mapping[int, Proposal]
    branch_points: Mapping[int, Mapping[int, float]]
    nodes: Sequence[tuple[float, int, int]]
    num_tokens: Sequence[int]
    contexts: Sequence[int]
    cost: ForwardPassCost
    overhead: StepOverhead

    def best(self, min_gains: Mapping[int, float]) -> tuple[float, Selection]:
        """The best rate in tokens a second, and its nodes, without branches that bring fewer than ``min_gains[i]``."""
        cost, contexts, overhead = self.cost, self.contexts, self.overhead.plain(len(self.num_tokens))
        rows, total, expected = list(self.num_tokens), sum(self.num_tokens), float(len(self.num_tokens))
        added, branching = list(map(cost.beyond, rows, contexts)), 0.0  # by each request's context, and by branches
        beyond = sum(added)
        best, count = expected / ((cost.at_short_context(total) + beyond) * cost.correction(total) + overhead), 0
        taken: list[tuple[int, int]] = []
        begun: set[int] = set()  # requests with a node
        reached: set[tuple[int, int]] = {(i, -1) for i in self.proposals}
        for probability, i, node in self.nodes:
            if (i, self.proposals[i].parents[node]) not in reached:
                continue
            if node in self.branch_points[i]:
                if self.branch_points[i][node] < min_gains[i]:
                    continue
                branching += cost.branch(contexts[i])
            if i not in begun:
                begun.add(i)
                overhead += self.overhead.drafting
            reached.add((i, node))
            taken.append((i, node))
            expected -= probability  # which is stored negative, to sort by
            total += 1
            grown = len(taken) % len(rows)  # whose row it is matters little to the time
            rows[grown] += 1
            more = cost.beyond(rows[grown], contexts[grown])
            beyond, added[grown] = beyond + more - added[grown], more
            seconds = (cost.at_short_context(total) + beyond) * cost.correction(total) + branching + overhead
            if expected / seconds > best:
                best, count = expected / seconds, len(taken)
        selected: Selection = {}
        for i, node in taken[:count]:
            selected.setdefault(i, []).append(node)
        return best, selected
