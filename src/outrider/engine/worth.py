"""Which nodes of the proposed trees are worth scoring: as many, the likeliest first, as give the most tokens a second.

    n = argmax (requests + Σ chances of the best n nodes) / T(requests + n rows, their branches)

A branch costs more than its rows (``engine.cost``), so that the likeliest nodes are tried twice: along one path of each
request alone, and with those branches that bring more than they cost at the rate the paths alone would give.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from outrider.core.tree import leaves
from outrider.engine.cost import CostCurve

OVERHEAD = 3e-4  # seconds of a step outside the target's run


@dataclass(frozen=True)
class Proposal:
    """A request's tree: each node's parent, and its chance to be kept, which is no more than its parent's."""

    parents: Sequence[int]
    chances: Sequence[float]
    most: int  # nodes to keep

    @property
    def branches(self) -> bool:
        return leaves(self.parents) > 1

    def totals(self) -> list[float]:
        """Of each node, the tokens that it and all below it can be expected to bring."""
        out = list(self.chances)
        for node in reversed(range(len(out))):
            if self.parents[node] >= 0:
                out[self.parents[node]] += out[node]
        return out


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
    scan = _Scan(proposals, nodes, fixed, contexts, curve)
    rate, kept = scan.best(dict.fromkeys(proposals, math.inf))
    if any(proposal.branches for proposal in proposals.values()):
        faster, more = scan.best({i: rate * curve.branch(contexts[i]) for i in proposals})
        kept = more if faster > rate else kept
    return {i: sorted(own) for i, own in kept.items()}


@dataclass(frozen=True)
class _Scan:
    proposals: Mapping[int, Proposal]
    nodes: Sequence[tuple[float, int, int]]
    fixed: Sequence[int]
    contexts: Sequence[int]
    curve: CostCurve

    def best(self, tolls: Mapping[int, float]) -> tuple[float, Kept]:
        """The best rate in tokens a second, and its nodes; a branch that brings fewer tokens than the toll is left."""
        totals = {i: proposal.totals() for i, proposal in self.proposals.items() if proposal.branches}
        rows, expected, branching = list(self.fixed), float(len(self.fixed)), 0.0
        best, count = expected / (self.curve.seconds(rows, self.contexts) + OVERHEAD), 0
        taken: list[tuple[int, int]] = []
        reached: set[tuple[int, int]] = {(i, -1) for i in self.proposals}
        continued: set[tuple[int, int]] = set()
        for chance, i, node in self.nodes:
            parent = (i, self.proposals[i].parents[node])
            if parent not in reached:
                continue
            if parent in continued:
                if totals[i][node] < tolls[i]:
                    continue
                branching += self.curve.branch(self.contexts[i])
            continued.add(parent)
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
