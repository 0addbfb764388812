"""The target's own first layers draft, on its weights and in its cache (docs/algorithms/layer-skip.md)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from outrider.cache import KVCache
from outrider.core.draft import EMPTY, Draft
from outrider.drafters.api import Outcome, RequestView
from outrider.drafters.trees.draft_batch import Feed, run
from outrider.drafters.trees.pending_draft import Sapling, grow
from outrider.models.base import Model


class LayerSkipDrafter:
    """Runs the first layers, then the final norm and LM head (LayerSkip, Elhoushi et al. 2024).

    The committed tokens' keys and values of those layers are in the target's cache already. A draft run writes the
    last token's and the draft's behind them, into rows that the scheduler has set aside for this very step:

        rows        0 .. cached-1 | last token | draft nodes ...
        layers < L  target's        draft run's, written again by the target's run, which computes the same
        layers >= L target's        not read by drafts

    Nothing is left to undo: what the draft run wrote lies behind the rows that count.
    """

    def __init__(self, model: Model, cache: KVCache, *, layers: int, vocab_size: int) -> None:
        """``model`` and ``cache`` are the target's; ``layers``, of its first ones, draft."""
        self._model, self._cache = model, cache
        self._layers, self._vocab_size = layers, vocab_size

    def start(self, request: RequestView) -> None:
        """Nothing to prepare."""

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Nothing to learn."""

    def finish(self, request_id: str) -> None:
        """Nothing to release."""

    def propose(self, requests: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        """Drafts for requests whose last token alone is pending: a prompt would be read by these layers twice."""
        saplings = [
            Sapling(request, request.slot, budget, self._vocab_size)
            for request, budget in zip(requests, budgets, strict=True)
            if budget > 0 and request.slot is not None and request.cached == len(request.tokens) - 1
        ]
        if saplings:
            last = [Feed(s.slot, s.request.cached, s.request.tokens[-1:], (s.request.cached,)) for s in saplings]
            grow(saplings, self._feed(last), fits=self._fits, run=self._run, source="layer_skip")
        drafts = {s.request.id: s.draft("layer_skip") for s in saplings}
        return [drafts.get(request.id, EMPTY) for request in requests]

    def _run(self, growing: Sequence[Sapling]) -> list[Tensor]:
        return self._feed([each.feed() for each in growing])

    def _feed(self, feeds: Sequence[Feed]) -> list[Tensor]:
        return run(self._model, self._cache, feeds, self._layers)

    def _fits(self, each: Sapling, rows: int) -> bool:
        return each.end + rows <= self._cache.length(each.slot)
