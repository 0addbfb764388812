"""The target itself guesses ahead, at look-ahead embeddings after the last token (docs/algorithms/pass.md)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outrider.cache import KVCache
from outrider.drafters.api import Drafter, RequestView
from outrider.drafters.context import DrafterContext
from outrider.drafters.trees.pending_draft import PendingDraft, drafts_of, grow_parallel
from outrider.models.base import HeadTarget
from outrider.models.batch import ForwardBatch, Span
from outrider.verify.draft import Draft
from outrider_torch.drafters.torch_target import torch_target
from outrider_torch.heads.pass_ import LookaheadEmbeddings


def build(context: DrafterContext) -> Drafter:
    """The source ``pass``."""
    ahead = context.heads["pass"]
    assert isinstance(ahead, LookaheadEmbeddings)
    target, cache = context.require_target()
    return PassDrafter(target, cache, ahead, vocab_size=context.vocab_size)


class PassDrafter(Drafter):
    """PaSS (Monea et al. 2023): one more run of the target, over the last token and look-ahead embeddings.

    ::

        rows     0 .. cached-1 | last token | [LA]_1     | [LA]_2 ...
        guesses                | next token | the second | the third ...

    The first guess is the target's own next token, which verification then draws again. The new rows lie after
    the committed ones, in the room reserved for the draft, and the target's run overwrites them.
    """

    def __init__(self, target: HeadTarget, cache: KVCache, ahead: LookaheadEmbeddings, *, vocab_size: int) -> None:
        """``cache`` is the target's. ``vocab_size``: columns of the target's head from there are padding."""
        target = torch_target(target)
        self._target, self._cache, self._vocab_size = target, cache, vocab_size
        self._ahead = ahead().detach().to(device=target.device, dtype=target.dtype)  # [T, d]
        self._learned = ahead.config.acceptance

    @torch.inference_mode()
    def propose(self, requests: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        """Drafts for requests with exactly one unread token, the last."""
        most = 1 + len(self._ahead)
        pending = [
            PendingDraft(
                request, request.slot, budget if request.speculation.tree else min(budget, most), self._vocab_size,
                self._learned,
            )
            for request, budget in zip(requests, budgets, strict=True)
            if budget > 0 and request.slot is not None and request.num_computed_tokens == len(request.tokens) - 1
        ]  # fmt: skip
        room = min(map(self._room, pending), default=0)
        if room > 0:
            deepest = min(most, room, max(each.request.depth_limit for each in pending))
            grow_parallel(pending, self._run(pending, deepest))
        return drafts_of(pending, requests, "pass")

    def _room(self, each: PendingDraft) -> int:
        """The rows that can be run for a draft and dropped."""
        start, states = each.request.num_computed_tokens, self._cache.states
        room = self._cache.length(each.slot) - start
        return room if states is None else min(room, states.pending - (start - states.settled(each.slot)))

    def _run(self, pending: Sequence[PendingDraft], depths: int) -> Tensor:
        """Logits [depths, requests, vocab]."""
        requests = [each.request for each in pending]
        last = self._target.embed(torch.tensor([r.tokens[-1] for r in requests]))  # [requests, d]
        ahead = self._ahead[: depths - 1].expand(len(requests), -1, -1)
        inputs = torch.cat([last[:, None], ahead], dim=1)  # [requests, depths, d]
        ids = [r.tokens[-1] for r in requests for _ in range(depths)]
        positions = [r.num_computed_tokens + depth for r in requests for depth in range(depths)]
        spans = tuple(Span(s.slot, s.request.num_computed_tokens, depths, kept=-1) for s in pending)
        batch = ForwardBatch(ids, positions, spans, None, inputs=inputs.flatten(0, 1))
        logits = self._target.forward(batch, self._cache).logits
        found: Tensor = logits.view(len(requests), depths, -1).transpose(0, 1)
        return found
