"""Recursive rejection sampling: test a node's children one after another, each against the residual of ``p``.

With one child per node it is speculative sampling (Leviathan et al. 2023, algorithm 1; Chen et al. 2023, algorithm
2). With several children it is iterative speculative sampling, SpecInfer (Miao et al. 2024, algorithm 2) or Sequoia
(Chen et al. 2024, algorithm 2): the three differ only in how children are drawn and in the order of the tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from outrider.verify.distribution import TargetRows
from outrider.verify.draft import Draft, Verdict
from outrider.verify.noise import Noise, Purpose
from outrider.verify.tree import children
from outrider.verify.verifiers.base import Siblings
from outrider.verify.verifiers.residual import log_weights_of, q_row, require_chain, residual


@dataclass(frozen=True)
class Recursive:
    """At each node, starting with ``left = p``, for each child ``x`` drawn from a distribution ``q``:

    ::

        with probability min(1, left(x) / q(x))    step down to x
        else                                       left = norm(max(0, left - q)), next child
        no child is left                           emit a token drawn from ``left``, and stop

    After a child is refused, the emitted token must follow ``left`` for its distribution to be ``p``, so the next
    child is tested as if ``left`` were the target. The result is exact by induction if each token was drawn from its
    row of ``q`` given its ancestors and its earlier siblings. A token without ``q`` may be chosen in any way that
    does not depend on this step's ACCEPT, RECOVER and ORDER noise (proofs: docs/algorithms/iterative.md).
    """

    name: str
    siblings: Siblings = Siblings.WITHOUT_REPLACEMENT
    """Without replacement, each sibling was drawn from its ``q`` without the tokens of its earlier siblings."""
    shuffled: bool = False
    """Test siblings in random order instead of the draft's order; requires independent siblings."""
    takes_trees: bool = True
    lenience: float = 1.0
    """Accept with probability min(1, left / (lenience q)); not exact below 1 (``lossy.Lenient``)."""
    exact: ClassVar[bool] = True
    shares_noise: ClassVar[bool] = False

    def __call__(self, draft: Draft, p: TargetRows, noise: Noise, position: int) -> Verdict:
        """Raises ConfigError for a draft with branches that the verifier does not take."""
        if not self.takes_trees:
            require_chain(draft, self.name)
        below = children(draft.parents)
        path: list[int] = []
        while True:
            row = 1 + path[-1] if path else 0
            if not below[row]:
                return Verdict(tuple(path), noise.draw(p.log_weights(row), position, Purpose.RECOVER, row))
            node, left = self._judge(draft, below[row], p.probs(row), noise, position)
            if node is None:
                return Verdict(tuple(path), noise.draw(log_weights_of(left), position, Purpose.RECOVER, row))
            path.append(node)

    def _judge(
        self, draft: Draft, siblings: Sequence[int], p: NDArray[np.float64], noise: Noise, position: int
    ) -> tuple[int | None, NDArray[np.float64]]:
        """The accepted sibling or None, and the residual of ``p`` after the refused siblings: float64 [vocab]."""
        left = p
        refused: list[int] = []
        for node in self._order(siblings, noise, position):
            token = draft.tokens[node]
            q = q_row(draft, node, left.shape[0], taken=() if self.siblings is Siblings.INDEPENDENT else refused)
            u = noise.uniform(position, Purpose.ACCEPT, node)
            # u < left/q without the division, which overflows for a tiny q. A token with left = 0 is never accepted.
            if u * (self.lenience * float(q[token])) < float(left[token]):
                return node, left
            left = residual(left, q)
            refused.append(token)
        return None, left

    def _order(self, siblings: Sequence[int], noise: Noise, position: int) -> Sequence[int]:
        if not self.shuffled:
            return siblings
        return sorted(siblings, key=lambda node: noise.uniform(position, Purpose.ORDER, node))
