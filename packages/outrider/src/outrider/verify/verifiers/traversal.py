"""Traversal verification: a tree judged from its leaves to its root (Weng et al. 2025, algorithm 2)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from outrider.verify.distribution import TargetRows
from outrider.verify.draft import Draft, Verdict
from outrider.verify.noise import Noise, Purpose
from outrider.verify.tree import children
from outrider.verify.verifiers.base import Siblings
from outrider.verify.verifiers.residual import log_weights_of, q_row


@dataclass(slots=True)
class _Row:
    """The root, or a node whose children are being tested."""

    node: int  # -1: the root
    q: NDArray[np.float64] | None  # the distribution the node was drawn from: float64 [vocab]; None for the root
    weight: float  # the probability of keeping its path, given the tests so far
    left: NDArray[np.float64]  # the residual distribution of the token after the node: float64 [vocab]
    below: list[int]  # children not tested yet, the next child last
    refused: list[int] = field(default_factory=list)  # tokens of refused children

    def refuse(self, token: int, q: NDArray[np.float64]) -> None:
        """Refuse the child ``token``, drawn from ``q``, and its whole subtree."""
        after = np.maximum(self.weight * self.left - q, 0.0)
        spare = float(after.sum())
        if spare > 0:
            self.left = after / spare
            self.weight = spare / (spare + (1 - self.weight))  # in this order never above 1
        elif self.weight < 1:  # weight 1 and spare 0 mean left = q, where refusals have probability 0
            self.weight = 0.0
        self.refused.append(token)


@dataclass(frozen=True)
class Traversal:
    """Test whole paths, the longest first: block verification on trees.

    ``weight`` is the probability of keeping the path to a node: 1 at the root, ``min(1, weight left(x) / q(x))`` for
    a child ``x``. The subtree of a node is tested before the node, child by child. If no node of a child's subtree
    is kept,

    ::

        spare  = sum(max(0, weight left - q)),   left = norm(max(0, weight left - q))
        weight = spare / (spare + 1 - weight),   q loses x, as siblings are drawn without replacement

    If no child's subtree keeps a node, the node is kept with probability ``weight``, and the next token is drawn from
    ``left``. Exact under the conditions of Sequoia. On a chain it equals block verification
    (docs/algorithms/traversal.md). With greedy siblings, no rule keeps a child with a higher probability
    (docs/algorithms/univer.md).
    """

    name: str
    siblings: Siblings = Siblings.WITHOUT_REPLACEMENT
    exact: ClassVar[bool] = True
    shares_noise: ClassVar[bool] = False
    takes_trees: ClassVar[bool] = True

    def __call__(self, draft: Draft, p: TargetRows, noise: Noise, position: int) -> Verdict:
        below = [nodes[::-1] for nodes in children(draft.parents)]
        path = [_Row(-1, None, 1.0, p.probs(0), below[0])]
        while True:
            row = path[-1]
            if row.below and row.weight > 0:
                node = row.below.pop()
                token = draft.tokens[node]
                q = q_row(draft, node, row.left.shape[0], taken=row.refused)
                weight = min(1.0, row.weight * float(row.left[token]) / float(q[token]))
                if weight > 0:
                    path.append(_Row(node, q, weight, p.probs(node + 1), below[node + 1]))
                else:
                    row.refuse(token, q)
            elif row.q is None or noise.uniform(position, Purpose.ACCEPT, row.node) < row.weight:
                kept = tuple(each.node for each in path[1:])
                return Verdict(kept, noise.draw(log_weights_of(row.left), position, Purpose.RECOVER, row.node + 1))
            else:
                path.pop()
                path[-1].refuse(draft.tokens[row.node], row.q)
