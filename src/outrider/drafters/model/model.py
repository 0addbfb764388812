"""A smaller model of the same vocabulary drafts (Leviathan et al. 2023; docs/algorithms/draft-model.md)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from outrider.cache import KVCache
from outrider.core.draft import EMPTY, Draft
from outrider.drafters.api import Outcome, RequestView
from outrider.drafters.draft_cache import DraftModel
from outrider.drafters.trees.pending_draft import Sapling, grow


class ModelDrafter:
    """Runs a draft model once for each token of a chain, or level of a tree, for all requests at once."""

    def __init__(self, model: DraftModel, name: str = "model") -> None:
        """``name``: of the source that its drafts are for."""
        self._model, self._name = model, name

    @property
    def caches(self) -> Sequence[KVCache]:
        return (self._model.cache,)

    def start(self, request: RequestView) -> None:
        self._model.start(request.id)

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Nothing to do: the cache catches up when it drafts."""

    def finish(self, request_id: str) -> None:
        self._model.finish(request_id)

    def propose(self, requests: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        model = self._model
        saplings: list[Sapling] = []
        for request, budget in zip(requests, budgets, strict=True):
            budget = min(budget, model.room(len(request.tokens)))
            if budget > 0:
                place = model.places[request.id]
                # The last token is always fed, for its logits.
                model.cut(place, request.tokens, len(request.tokens) - 1)
                saplings.append(Sapling(request, place.slot, budget, model.vocab_size))
        last = model.read([(model.places[s.request.id], s.request.tokens) for s in saplings])
        grown = [saplings[i] for i in last]
        grow(grown, list(last.values()), fits=self._fits, run=self._run, source=self._name)
        drafts = {s.request.id: s.draft(self._name) for s in grown}
        for each in grown:
            if not each.in_order:  # a later step finds its rows again only if they are in order
                model.cache.truncate_to(each.slot, len(each.request.tokens))
        return [drafts.get(request.id, EMPTY) for request in requests]

    def _fits(self, each: Sapling, rows: int) -> bool:
        return self._model.cache.can_extend(each.slot, rows)

    def _run(self, growing: Sequence[Sapling]) -> list[Tensor]:
        feeds = [each.feed() for each in growing]
        for each, feed in zip(growing, feeds, strict=True):
            if each.in_order:
                self._model.places[each.request.id].cached += feed.tokens
        return self._model.run(feeds)
