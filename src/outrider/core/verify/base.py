"""What verifiers and the drafting side have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from outrider.core.distribution import TargetRows
from outrider.core.draft import Draft, Verdict
from outrider.core.noise import Noise, Purpose


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
    def coupled(self) -> bool:
        """Whether drafters should draw with the noise of the token's own position, as the target will."""
        ...

    @property
    def takes_trees(self) -> bool:
        """Whether drafts may branch."""
        ...

    @property
    def distinct(self) -> bool:
        """Whether the children of a node are drawn without replacement; else they are independent draws.

        Only where a draft has ``q``: see ``Draws.siblings``.
        """
        ...

    def __call__(self, draft: Draft, p: TargetRows, noise: Noise, position: int) -> Verdict: ...


@dataclass(frozen=True)
class Draws:
    """How a draft source draws in one step of one request, so that it need not know the verifier."""

    noise: Noise
    base: int  # absolute position of the step's first token
    coupled: bool  # the verifier's
    distinct: bool = True  # the verifier's
    takes_trees: bool = True  # the verifier's

    def draw(self, log_weights: Tensor, *, depth: int, node: int) -> int:
        """Draw node ``node`` of the draft, ``depth`` edges below the root's children, from float32 [vocab].

        Coupled draws use the position's own noise, with which the target will draw: they agree more often than
        independent draws. The others come from a stream of their own, as rejection needs a draft that is
        independent of its accept test and of its recovered token.
        """
        if self.coupled:
            return self.noise.draw(log_weights, self.base + depth)
        return self.noise.draw(log_weights, self.base, Purpose.DRAFT, node)

    def siblings(self, log_weights: Tensor, count: int, *, depth: int, node: int) -> list[int]:
        """Draw up to ``count`` children of one node, nodes ``node`` and following of the draft.

        Distinct children are the best of one Gumbel race, which is drawing without replacement (Kool et al. 2019,
        "Stochastic beams"), in the order in which they were drawn: the first is what ``draw`` gives. There are
        fewer than ``count`` where fewer tokens are possible. Independent children may be equal.

        A draft that reports ``q`` has all of them as nodes, in this order, duplicates too, each with the row
        ``log_weights``: a child left out or added because of what was drawn is no longer a draw from ``q``. Drafts
        that choose among tokens they have drawn, or merge them, leave ``q`` out (docs/algorithms/iterative.md).
        """
        if not self.distinct:
            return [self.draw(log_weights, depth=depth, node=node + i) for i in range(count)]
        if self.coupled:
            return self.noise.draw_distinct(log_weights, count, self.base + depth)
        return self.noise.draw_distinct(log_weights, count, self.base, Purpose.DRAFT, node)

    def perturbed(self, log_weights: Tensor, *, depth: int) -> Tensor:
        """What the target's draw at this depth is the argmax of, should it agree with ``log_weights``: float32 [vocab].

        For coupled draws only: the others must not look at the noise that decides on them.
        """
        assert self.coupled
        return log_weights.cpu() + self.noise.gumbel(self.base + depth, log_weights.shape[0])
