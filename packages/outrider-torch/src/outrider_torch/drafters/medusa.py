"""Heads on the target's last hidden state guess several tokens at once (docs/algorithms/medusa.md, blockwise.md)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from outrider.drafters.api import Drafter, RequestView
from outrider.drafters.context import DrafterContext
from outrider.drafters.trees.pending_draft import PendingDraft, drafts_of, grow_parallel
from outrider.models.base import HeadTarget
from outrider.verify.arrays import Array
from outrider.verify.draft import Draft
from outrider_torch.drafters.head_parts import Scores, packed_states
from outrider_torch.drafters.torch_target import torch_target
from outrider_torch.heads.blockwise import BlockwiseHeads
from outrider_torch.heads.medusa import MedusaHeads
from outrider_torch.kernels.native_tensors import as_tensors


def build_medusa(context: DrafterContext) -> Drafter:
    """The source ``medusa``."""
    return _build(context, context.heads["medusa"])


def build_blockwise(context: DrafterContext) -> Drafter:
    """The source ``blockwise``."""
    return _build(context, context.heads["blockwise"])


def _build(context: DrafterContext, heads: nn.Module) -> Drafter:
    assert isinstance(heads, MedusaHeads | BlockwiseHeads)
    return MedusaDrafter(context.require_target()[0], heads, vocab_size=context.vocab_size)


class MedusaDrafter(Drafter):
    """Medusa (Cai et al. 2024) and blockwise parallel decoding (Stern et al. 2018).

    The target has not read the last token yet. The hidden state before it predicted it, and head i guesses
    the token i + 1 places after it:

    ::

        tokens   a  b  c  d        d: the last committed token
        hidden         ^           LM head: d,  head 0: the token after d,  head 1: the one after that ...
    """

    def __init__(self, target: HeadTarget, heads: MedusaHeads | BlockwiseHeads, *, vocab_size: int) -> None:
        """The weights of ``heads`` are packed. ``vocab_size``: columns from there are padding."""
        target = torch_target(target)
        self._target, self._config, self._states = target, heads.config, packed_states(heads, target)
        self._scores = Scores(heads, target)
        self._vocab_size, self._source = vocab_size, heads.config.kind
        self.feature_layers = (target.config.num_layers,)
        self._last: dict[str, tuple[int, Tensor]] = {}  # position and feature [1, d] of the last token read

    def start(self, request: RequestView) -> None:
        self._last.pop(request.id, None)

    def read(self, request: RequestView, start: int, features: Array) -> None:
        self._last[request.id] = start + len(features) - 1, as_tensors(features[-1:]).clone()

    def finish(self, request_id: str) -> None:
        self._last.pop(request_id, None)

    @torch.inference_mode()
    def propose(self, requests: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        """Drafts for requests with exactly one unread token, the last."""
        heads = self._config.heads
        pending = [
            self._pending_draft(request, budget if request.speculation.tree else min(budget, heads))
            for request, budget in zip(requests, budgets, strict=True)
            if budget > 0 and self._last.get(request.id, (None,))[0] == len(request.tokens) - 2
        ]
        if pending:
            features = torch.cat([self._last[each.request.id][1] for each in pending])
            deepest = min(heads, max(each.request.depth_limit for each in pending))
            states = self._states(self._target.final_norm(features))[:deepest]  # [depths, requests, d]
            grow_parallel(pending, self._scores(states.flatten(0, 1)).unflatten(0, states.shape[:2]))
        return drafts_of(pending, requests, self._source)

    def _pending_draft(self, request: RequestView, budget: int) -> PendingDraft:
        c = self._config
        return PendingDraft(request, 0, budget, self._vocab_size, c.acceptance, self._scores.vocabulary, c.calibration)
