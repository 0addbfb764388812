"""Heads on the target's last hidden state guess several tokens at once (docs/algorithms/medusa.md, blockwise.md)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outrider.core.draft import Draft
from outrider.drafters.api import Outcome, RequestView
from outrider.drafters.trained.head_parts import Scores, packed
from outrider.drafters.trained.parallel import drafts_of, grow_parallel
from outrider.drafters.trees.pending_draft import Sapling
from outrider.heads.blockwise import BlockwiseHeads
from outrider.heads.medusa import MedusaHeads
from outrider.models.base import HeadTarget


class MedusaDrafter:
    """Medusa (Cai et al. 2024) and blockwise parallel decoding (Stern et al. 2018).

    The last token has not been through the target yet; the hidden state before it has guessed it, and head i guesses
    the token i + 1 places behind it:

    ::

        tokens   a  b  c  d        d: the last committed token
        hidden         ^           LM head: d,  head 0: the token after d,  head 1: the one after that ...
    """

    def __init__(self, target: HeadTarget, heads: MedusaHeads | BlockwiseHeads, *, vocab_size: int) -> None:
        """``heads`` becomes the drafter's own: it is packed. ``vocab_size``: columns from there are padding."""
        self._target, self._heads = target, packed(heads, target)
        self._scores = Scores(self._heads, target)
        self._vocab_size, self._source = vocab_size, heads.config.kind
        self.feature_layers = (target.config.num_layers,)
        self._last: dict[str, tuple[int, Tensor]] = {}  # position and feature [1, d] of the last token read

    def start(self, request: RequestView) -> None:
        self._last.pop(request.id, None)

    def read(self, request: RequestView, start: int, features: Tensor) -> None:
        self._last[request.id] = start + len(features) - 1, features[-1:].clone()

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Nothing to learn."""

    def finish(self, request_id: str) -> None:
        self._last.pop(request_id, None)

    def propose(self, requests: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        """Drafts for requests all of whose tokens but the last have been read."""
        heads = self._heads.config.heads
        saplings = [
            self._sapling(request, budget if request.speculation.tree else min(budget, heads))
            for request, budget in zip(requests, budgets, strict=True)
            if budget > 0 and self._last.get(request.id, (None,))[0] == len(request.tokens) - 2
        ]
        if saplings:
            features = torch.cat([self._last[each.request.id][1] for each in saplings])
            deepest = min(heads, max(each.request.depth_limit for each in saplings))
            states = self._heads(self._target.final_norm(features))[:deepest]  # [depths, requests, d]
            grow_parallel(saplings, self._scores(states.flatten(0, 1)).unflatten(0, states.shape[:2]))
        return drafts_of(saplings, requests, self._source)

    def _sapling(self, request: RequestView, budget: int) -> Sapling:
        learned = self._heads.config.acceptance
        return Sapling(request, 0, budget, self._vocab_size, learned, self._scores.vocabulary)
