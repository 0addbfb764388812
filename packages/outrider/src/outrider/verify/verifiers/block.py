"""Block verification: a chain judged as a whole (Sun et al. 2024, algorithm 2)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from outrider.verify.distribution import TargetRows
from outrider.verify.draft import Draft, Verdict
from outrider.verify.noise import Noise, Purpose
from outrider.verify.verifiers.base import Siblings
from outrider.verify.verifiers.residual import log_weights_of, q_row, require_chain


class BlockVerifier:
    """Keep the longest prefix whose accept test succeeds; rejection sampling stops at the first refused token.

    ``weight`` is the probability of keeping the prefix, updated by ``min(1, weight p(x) / q(x))`` along the chain.
    A token with p > q compensates for an earlier token with p < q, unlike in rejection sampling. Each prefix has an
    accept test of its own, and the longest accepted prefix is kept:

    ::

        spare   = sum(max(0, weight p - q))     of the row after the prefix
        keep it with probability  spare / (spare + 1 - weight), and the whole chain with probability weight
        recover from norm(max(0, weight p - q))

    Exact under the conditions of rejection sampling. The expected number of kept tokens is at least that of
    rejection sampling (docs/algorithms/block.md).
    """

    name = "block"
    exact = True
    shares_noise = False
    takes_trees = False
    siblings = Siblings.WITHOUT_REPLACEMENT

    def __call__(self, draft: Draft, p: TargetRows, noise: Noise, position: int) -> Verdict:
        """Raises ConfigError for a draft with branches."""
        require_chain(draft, self.name)
        n, kept, weight = len(draft), 0, 1.0
        left: NDArray[np.float64] | None = None  # unnormalised distribution of the token after the kept prefix
        for node, token in enumerate(draft.tokens):
            p_row = p.probs(node)
            q = q_row(draft, node, p_row.shape[0])
            after = np.maximum(weight * p_row - q, 0.0)
            spare = float(after.sum())
            # A prefix with weight = 1 is always kept. Then spare = 0 means p = q: the formula is 0 / 0, and either
            # decision is right, because the next prefix is kept too.
            if weight == 1.0 or _uniform(noise, position, node) * (spare + 1 - weight) < spare:
                kept, left = node, after if spare > 0 else p_row
            weight = min(1.0, weight * float(p_row[token]) / float(q[token]))
            if weight == 0.0:  # no longer prefix can be kept
                break
        if weight == 1.0 or (weight > 0.0 and _uniform(noise, position, n) < weight):
            return Verdict(tuple(range(n)), noise.draw(p.log_weights(n), position, Purpose.RECOVER, n))
        assert left is not None  # the empty prefix is always kept
        return Verdict(tuple(range(kept)), noise.draw(log_weights_of(left), position, Purpose.RECOVER, kept))


def _uniform(noise: Noise, position: int, length: int) -> float:
    """The random number of the accept test for the prefix of ``length >= 1`` tokens, keyed by its last node."""
    return noise.uniform(position, Purpose.ACCEPT, length - 1)
