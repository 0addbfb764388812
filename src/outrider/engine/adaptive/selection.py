"""Which nodes of the proposed trees are worth scoring: as many, the likeliest first, as give the most tokens a second.

    n = argmax (requests + Σ chances of the best n nodes) / T(requests + n rows, their branches)

A branch costs more than its rows (``engine.cost``), so that the likeliest nodes are tried twice: along one path of each
request alone, and with those branches that bring more than they cost at the rate the paths alone would give.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from outrider.engine.adaptive.cost import CostCurve

OVERHEAD = 3e-4  # seconds of a step outside the target's run


@dataclass(frozen=True)
class Proposal:
    """A request's tree: each node's parent, and its chance to be kept, which is no more than its parent's."""

    parents: Sequence[int]
    chances: Sequence[float]
    most: int  # nodes to keep

    def turnings(self) -> dict[int, float]:
        """The nodes at which a branch begins, and the tokens that each can be expected to bring with all below it.

        Of the children of a node the one that brings most goes on with the path, the others are branches.
        """
        totals = list(self.chances)
        ahead: dict[int, int] = {}  # the best child
        for node in reversed(range(len(totals))):
            parent = self.parents[node]
            if parent >= 0:
                totals[parent] += totals[node]
            if parent not in ahead or totals[node] >= totals[ahead[parent]]:
                ahead[parent] = node
        return {node: total for node, total in enumerate(totals) if ahead[self.parents[node]] != node}


Kept = dict[int, list[int]]
"""Nodes by request, ascending."""


def worthwhile(
    proposals: Mapping[int, Proposal], fixed: Sequence[int], contexts: Sequence[int], curve: CostCurve
) -> Kept:
    """The nodes to score of each request's proposal.

    Args:
        proposals: by the number of the request.
        fixed: rows that come with each request in any case.
        contexts: tokens each request looks back on.
    """
    nodes: list[tuple[float, int, int]] = []  # chance, request, node
    for i, proposal in proposals.items():
        # A parent's chance is no less than its child's, and its number is smaller.
        nodes += sorted((-chance, i, node) for node, chance in enumerate(proposal.chances))[: proposal.most]
    nodes.sort()
    turnings = {i: proposal.turnings() for i, proposal in proposals.items()}
    scan = _Scan(proposals, turnings, nodes, fixed, contexts, curve)
    rate, kept = scan.best(dict.fromkeys(proposals, math.inf))
    if any(turnings.values()):
        faster, more = scan.best({i: rate * curve.branch(contexts[i]) for i in proposals})
        kept = more if faster > rate else kept
    return {i: sorted(own) for i, own in kept.items()}


@dataclass(frozen=True)
class _Scan:
    proposals: Mapping[int, Proposal]
    turnings: Mapping[int, Mapping[int, float]]
    nodes: Sequence[tuple[float, int, int]]
    fixed: Sequence[int]
    contexts: Sequence[int]
    curve: CostCurve

    def best(self, tolls: Mapping[int, float]) -> tuple[float, Kept]:
        """The best rate in tokens a second, and its nodes; a branch that brings fewer tokens than the toll is left."""
        rows, expected, branching = list(self.fixed), float(len(self.fixed)), 0.0
        best, count = expected / (self.curve.seconds(rows, self.contexts) + OVERHEAD), 0
        taken: list[tuple[int, int]] = []
        reached: set[tuple[int, int]] = {(i, -1) for i in self.proposals}
        for chance, i, node in self.nodes:
            if (i, self.proposals[i].parents[node]) not in reached:
                continue
            if node in self.turnings[i]:
                if self.turnings[i][node] < tolls[i]:
                    continue
                branching += self.curve.branch(self.contexts[i])
            reached.add((i, node))
            taken.append((i, node))
            expected -= chance  # which is stored negative, to sort by
            rows[len(taken) % len(rows)] += 1  # whose row it is matters little to the time
            rate = expected / (self.curve.seconds(rows, self.contexts) + branching + OVERHEAD)
            if rate > best:
                best, count = rate, len(taken)
        kept: Kept = {}
        for i, node in taken[:count]:
            kept.setdefault(i, []).append(node)
        return best, kept
