"""Drafts with a smaller model of the same vocabulary (Leviathan et al. 2023; docs/algorithms/draft-model.md)."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.cache import KVCache
from outrider.drafters.api import Drafter, RequestView
from outrider.drafters.context import DrafterContext
from outrider.drafters.cost import DraftingCost, time_drafts
from outrider.drafters.draft_cache import DraftModel
from outrider.drafters.trees.pending_draft import PendingDraft, drafts_of, grow
from outrider.errors import ConfigError
from outrider.verify.arrays import Array
from outrider.verify.draft import Draft


def build(context: DrafterContext) -> Drafter:
    """The source ``model``."""
    return ModelDrafter(context.cached_draft_models[0])


class ModelDrafter(Drafter):
    """Runs a draft model once per level of a chain or tree, for all requests at once."""

    def __init__(self, model: DraftModel, name: str = "model") -> None:
        """``name``: the source named in its drafts."""
        self.model, self._name = model, name

    @property
    def caches(self) -> Sequence[KVCache]:
        return (self.model.cache,)

    def time_drafts(self) -> DraftingCost | None:
        return time_drafts(self.model.model)

    def start(self, request: RequestView) -> None:
        """Raises ConfigError for a tree of a model with recurrent layers: its state follows one path."""
        if self.model.cache.states is not None and request.speculation.tree is not None:
            raise ConfigError("a draft model with recurrent layers drafts chains alone: leave out tree")
        self.model.start(request.id, request.input)

    def finish(self, request_id: str) -> None:
        self.model.finish(request_id)

    def propose(self, requests: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        model = self.model
        pending = pending_drafts(model, requests, budgets)
        texts = [(model.sequences[each.request.id], each.request.tokens) for each in pending]
        last = model.prefill(texts, lambda: requests[0].seconds_left)
        pending = [pending[i] for i in last]
        grow(pending, list(last.values()), fits=self._fits, run=self._run, source=self._name)
        for each in pending:
            if not each.in_order:  # a tree's rows are not a text, so a later step cannot reuse them
                model.cache.truncate_to(each.slot, len(each.request.tokens))
        return drafts_of(pending, requests, self._name)

    def _fits(self, each: PendingDraft, rows: int) -> bool:
        return self.model.cache.can_extend(each.slot, rows)

    def _run(self, growing: Sequence[PendingDraft]) -> list[Array]:
        feeds = [each.feed() for each in growing]
        for each, feed in zip(growing, feeds, strict=True):
            if each.in_order:
                self.model.sequences[each.request.id].cached += feed.tokens
        return self.model.run(feeds)


def pending_drafts(model: DraftModel, requests: Sequence[RequestView], budgets: Sequence[int]) -> list[PendingDraft]:
    """An empty draft for each request with room in the model's context; truncates its cache to the request's text.

    The cache never keeps the last token, which is always fed for its logits.
    """
    pending: list[PendingDraft] = []
    for request, budget in zip(requests, budgets, strict=True):
        nodes = min(budget, model.remaining_context(len(request.tokens)))
        if nodes > 0:
            sequence = model.sequences[request.id]
            sequence.committed = len(request.tokens) - 1
            model.truncate(sequence, request.tokens, len(request.tokens) - 1)
            pending.append(PendingDraft(request, sequence.slot, nodes, model.vocab_size))
    return pending
