"""Gemma 4's assistant goes on from the target's hidden state, and attends to the target's own keys and values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from outrider.drafters.api import Drafter, RequestView
from outrider.drafters.context import DrafterContext
from outrider.drafters.trained.heads import native_target
from outrider.drafters.trained.native_assistant import NativeAssistant
from outrider.drafters.trees.pending_draft import PendingDraft, drafts_of, grow
from outrider.models.native_llama import NativeLlamaModel
from outrider.verify.arrays import Array, Floats, copied, host
from outrider.verify.draft import EMPTY, Draft

SOURCE = "assistant"


def build(context: DrafterContext) -> Drafter:
    """The source ``assistant``."""
    _, cache = context.require_target()
    target = native_target(context.target)
    return AssistantDrafter(NativeAssistant(context.heads[SOURCE], target, cache), target, context.vocab_size)


class AssistantDrafter(Drafter):
    """Drafts level by level, with no cache of its own: a request has one hidden state, that of its last but one token.

    Every level of a draft attends to the request's own tokens alone, and takes the position of the last: so the
    assistant was trained.
    """

    def __init__(self, runner: NativeAssistant, target: NativeLlamaModel, vocab_size: int) -> None:
        """``vocab_size``: logits from this column on are padding."""
        self.feature_layers = (target.config.num_layers,)
        self._runner, self._target, self._vocab_size = runner, target, vocab_size
        self._last: dict[str, tuple[int, Array]] = {}  # the position behind the last feature [1, d], and the feature
        self._states: dict[str, Floats] = {}  # of a draft's rows: the request's own, then those of its nodes

    def start(self, request: RequestView) -> None:
        self.finish(request.id)

    def finish(self, request_id: str) -> None:
        self._last.pop(request_id, None)

    def read(self, request: RequestView, start: int, features: Array) -> None:
        self._last[request.id] = (start + len(features), copied(features[-1:]))

    def propose(self, requests: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        """Drafts for requests all of whose tokens but the last are in the target's cache."""
        pending = [
            PendingDraft(request, request.slot, budget, self._vocab_size)
            for request, budget in zip(requests, budgets, strict=True)
            if budget > 0 and request.slot is not None and self._is_ready(request)
        ]
        if not pending:
            return [EMPTY] * len(requests)
        before = [host(self._last[each.request.id][1]) for each in pending]
        states = self._target.final_norm(np.concatenate(before))
        tokens = [each.request.tokens[-1] for each in pending]
        out, logits = self._runner.run(tokens, states, *_places(pending, [1] * len(pending)))
        self._states = {each.request.id: out[i : i + 1] for i, each in enumerate(pending)}
        first = [logits[i : i + 1] for i in range(len(pending))]
        grow(pending, first, fits=lambda each, rows: True, run=self._grow, source=SOURCE)
        self._states = {}
        return drafts_of(pending, requests, SOURCE)

    def _is_ready(self, request: RequestView) -> bool:
        end = self._last.get(request.id, (0, None))[0]
        return 0 < end == len(request.tokens) - 1 == request.num_computed_tokens

    def _grow(self, growing: Sequence[PendingDraft]) -> list[Array]:
        """The logits [n, vocab] of each draft's level, whose rows go on from their parents' states."""
        feeds = [each.feed() for each in growing]
        counts = [len(feed.tokens) for feed in feeds]
        above = [
            self._states[each.request.id][[1 + row for row in feed.above]]
            for each, feed in zip(growing, feeds, strict=True)
        ]
        tokens = [token for feed in feeds for token in feed.tokens]
        out, logits = self._runner.run(tokens, np.concatenate(above), *_places(growing, counts))
        ends = np.cumsum(counts)[:-1]
        for each, part in zip(growing, np.split(out, ends), strict=True):
            self._states[each.request.id] = np.concatenate([self._states[each.request.id], part])
        return list(np.split(logits, ends))


def _places(pending: Sequence[PendingDraft], counts: Sequence[int]) -> tuple[list[int], list[int]]:
    """Slot, and number of tokens in the target's cache, for each row of the drafts."""
    each = [(p.slot, len(p.request.tokens) - 1) for p, count in zip(pending, counts, strict=True) for _ in range(count)]
    return [slot for slot, _ in each], [length for _, length in each]
