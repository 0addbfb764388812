"""What verifiers and the drafting side have in common."""

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
    """How the children of a node are drawn, where a draft has ``q_logits``."""

    INDEPENDENT = "independent"
    WITHOUT_REPLACEMENT = "without replacement"
    GREEDY = "greedy"
    """The most likely tokens for all but one, and one drawn from the rest (Hu et al. 2025, section 5)."""


class Verifier(Protocol):
    """Decides which draft tokens are kept, and the token after them.

    Args of a call:
        draft: the proposal.
        p: the target's rows for this draft.
        noise: the request's.
        position: the step's base, the absolute position of the first token to be decided. It grows by at least
            one per step, so that a key (position, node) never repeats.
    """

    @property
    def name(self) -> str: ...

    @property
    def exact(self) -> bool:
        """False for lossy rules, which say so in results and statistics."""
        ...

    @property
    def shares_noise(self) -> bool:
        """Whether drafters draw with the noise of the token's own position, as the target will (coupled draws)."""
        ...

    @property
    def takes_trees(self) -> bool:
        """Whether drafts may branch."""
        ...

    @property
    def siblings(self) -> Siblings:
        """How the children of a node are to be drawn: see ``DraftSampler.siblings``."""
        ...

    def __call__(self, draft: Draft, p: TargetRows, noise: Noise, position: int) -> Verdict: ...


@dataclass(frozen=True)
class Drawn:
    """Children of one node, and of each the log-weights it was drawn from: float32 [vocab]."""

    tokens: list[int]
    rows: list[Floats]


@dataclass(frozen=True)
class DraftSampler:
    """Samples the draft tokens of one request in one step, so that a draft source need not know the verifier."""

    noise: Noise
    base: int  # absolute position of the step's first token
    shares_noise: bool  # the verifier's
    sibling_sampling: Siblings = Siblings.WITHOUT_REPLACEMENT  # the verifier's
    takes_trees: bool = True  # the verifier's

    def draw(self, log_weights: Array, *, depth: int, node: int) -> int:
        """Draw node ``node`` of the draft, ``depth`` edges below the root's children, from log-weights [vocab].

        With shared noise the draw uses the position's own noise, with which the target will draw: the two agree more
        often than independent draws. Without, it comes from a stream of its own: rejection needs a draft that is
        independent of its accept test and of its recovered token.
        """
        if self.shares_noise:
            return self.noise.draw(log_weights, self.base + depth)
        return self.noise.draw(log_weights, self.base, Purpose.DRAFT, node)

    def siblings(self, log_weights: Array, count: int, *, depth: int, node: int) -> Drawn:
        """Draw up to ``count`` children of one node, nodes ``node`` and following of the draft.

        Without replacement they are the Gumbel-top-k (Kool et al. 2019, "Stochastic beams"), in the order in which
        they were drawn: the first is what ``draw`` gives. Greedy ones begin with the token drawn. There are fewer than
        ``count`` where fewer tokens are possible. Independent children may be equal.

        A draft with ``q_logits`` has all of them as nodes, in this order, duplicates too, each with its row: a child
        left out or added because of what was drawn is no longer a draw from ``q``. Drafts that choose among tokens
        they have drawn, or merge them, leave ``q_logits`` out (docs/algorithms/iterative.md).
        """
        if count < 1:
            return Drawn([], [])
        weights = host(log_weights)  # what drafts hold, whatever a source has drawn from
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
        """One child drawn from all but the ``count - 1`` most likely tokens, which follow it."""
        if not np.isfinite(log_weights.max()):
            self.draw(log_weights, depth=depth, node=node)  # which raises
        best = largest(log_weights, count)
        sure = best[: count - 1]
        certain = np.full((len(sure), len(log_weights)), -np.inf, np.float32)
        certain[np.arange(len(sure)), sure] = 0.0
        if len(best) < count:  # these are all there are
            return Drawn(sure.tolist(), list(certain))
        left = log_weights.copy()
        left[sure] = -np.inf
        return Drawn([self.draw(left, depth=depth, node=node), *sure.tolist()], [left, *certain])

    def race_noise(self, tokens: NDArray[np.int64] | int, *, depth: int) -> NDArray[np.float32]:
        """What the target adds to log-weights at this depth before it takes the largest: float32, one for each token.

        ``tokens``: ids; or so many, from 0 on. Where noise is shared only: the others must not look at the noise that
        decides on them.
        """
        assert self.shares_noise
        if isinstance(tokens, int):
            return self.noise.gumbel(self.base + depth, tokens)
        return self.noise.gumbel_of(tokens, self.base + depth)
