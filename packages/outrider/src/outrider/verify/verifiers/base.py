"""The verifier protocol, and how draft sources draw tokens for a verifier."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from outrider.verify.arrays import Array, Floats, host
from outrider.verify.distribution import TargetRows
from outrider.verify.draft import Draft, Verdict
from outrider.verify.noise import Noise, Purpose, largest


class Siblings(Enum):
    """How the children of a node are drawn if the draft has ``q_logits``."""

    INDEPENDENT = "independent"
    WITHOUT_REPLACEMENT = "without replacement"
    GREEDY = "greedy"
    """The ``count - 1`` most likely tokens, and one token drawn from the rest (Hu et al. 2025, section 5)."""


class Verifier(Protocol):
    """Decides which draft tokens are kept, and the token after them.

    Args of a call:
        draft: the proposal.
        p: the target's rows for this draft.
        noise: the request's random numbers.
        position: the absolute position of the step's first token. It grows by at least one per step, so that no
            key (position, node) repeats.
    """

    @property
    def name(self) -> str: ...

    @property
    def exact(self) -> bool:
        """Whether the output has the target's distribution; results and statistics report a lossy rule."""
        ...

    @property
    def shares_noise(self) -> bool:
        """Whether drafters draw a token with the noise that the target uses at its position (coupled draws)."""
        ...

    @property
    def takes_trees(self) -> bool:
        """Whether drafts may branch."""
        ...

    @property
    def siblings(self) -> Siblings:
        """How drafters draw the children of a node: see ``DraftSampler.siblings``."""
        ...

    def __call__(self, draft: Draft, p: TargetRows, noise: Noise, position: int) -> Verdict: ...


@dataclass(frozen=True)
class Drawn:
    """The children of one node, each with the log-weights it was drawn from: float32 [vocab]."""

    tokens: list[int]
    rows: list[Floats]


@dataclass(frozen=True)
class DraftSampler:
    """Draws the draft tokens of one request in one step as its verifier requires."""

    noise: Noise
    base: int  # absolute position of the step's first token
    shares_noise: bool  # the verifier's
    sibling_sampling: Siblings = Siblings.WITHOUT_REPLACEMENT  # the verifier's
    takes_trees: bool = True  # the verifier's

    def draw(self, log_weights: Array, *, depth: int, node: int) -> int:
        """Draw node ``node`` of the draft, ``depth`` edges below the root's children, from log-weights [vocab].

        With shared noise, the draft and the target draw with the same random numbers, and so agree more often than
        independent draws. Otherwise the draft has a random stream of its own: rejection sampling requires a draft
        that is independent of the accept test and of the recovered token.
        """
        if self.shares_noise:
            return self.noise.draw(log_weights, self.base + depth)
        return self.noise.draw(log_weights, self.base, Purpose.DRAFT, node)

    def siblings(self, log_weights: Array, count: int, *, depth: int, node: int) -> Drawn:
        """Draw up to ``count`` children of one node, which become nodes ``node`` and following of the draft.

        Without replacement, the children are the Gumbel-top-k in the order drawn (Kool et al. 2019, "Stochastic
        beams"), and the first equals the result of ``draw``. Greedy children begin with the drawn token. Independent
        children may be equal. There are fewer than ``count`` children if fewer tokens are possible.

        A draft with ``q_logits`` has every child as a node, in this order and with its row, duplicates included:
        selecting children by their tokens would change their distribution ``q``. A draft that selects or merges
        drawn tokens has no ``q_logits`` (docs/algorithms/iterative.md).
        """
        if count < 1:
            return Drawn([], [])
        weights = host(log_weights)  # drafts hold NumPy arrays
        if self.sibling_sampling is Siblings.GREEDY:
            return self._greedy(weights, count, depth=depth, node=node)
        if self.sibling_sampling is Siblings.INDEPENDENT:
            tokens = [self.draw(weights, depth=depth, node=node + i) for i in range(count)]
        elif self.shares_noise:
            tokens = self.noise.draw_without_replacement(weights, count, self.base + depth)
        else:
            tokens = self.noise.draw_without_replacement(weights, count, self.base, Purpose.DRAFT, node)
        return Drawn(tokens, [weights] * len(tokens))

    def _greedy(self, log_weights: Floats, count: int, *, depth: int, node: int) -> Drawn:
        """The ``count - 1`` most likely tokens, preceded by a token drawn from all others."""
        if not np.isfinite(log_weights.max()):
            self.draw(log_weights, depth=depth, node=node)  # raises NumericalError
        best = largest(log_weights, count)
        sure = best[: count - 1]
        certain = np.full((len(sure), len(log_weights)), -np.inf, np.float32)
        certain[np.arange(len(sure)), sure] = 0.0
        if len(best) < count:  # no other token is possible
            return Drawn(sure.tolist(), list(certain))
        left = log_weights.copy()
        left[sure] = -np.inf
        return Drawn([self.draw(left, depth=depth, node=node), *sure.tolist()], [left, *certain])

    def race_noise(self, tokens: NDArray[np.int64] | int, *, depth: int) -> NDArray[np.float32]:
        """The Gumbel noise that the target adds to log-weights at this depth before its arg-max: float32 [tokens].

        ``tokens``: token ids, or their number if the ids count from 0. Requires ``shares_noise``: other verifiers need
        drafts that do not depend on the noise of the accept test.
        """
        assert self.shares_noise
        if isinstance(tokens, int):
            return self.noise.gumbel(self.base + depth, tokens)
        return self.noise.gumbel_of(tokens, self.base + depth)

    def race_keys(self, depth: int) -> bytes:
        """The keys of ``race_noise`` in the native library (``outrider_gumbel_of_tokens``)."""
        assert self.shares_noise
        return self.noise.row_keys(self.base + depth)
