"""The target's own first layers draft, on its weights and in its cache (docs/algorithms/layer-skip.md)."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.cache import KVCache
from outrider.drafters.api import Drafter, RequestView
from outrider.drafters.context import DrafterContext
from outrider.drafters.trees.draft_batch import Feed, run
from outrider.drafters.trees.pending_draft import PendingDraft, drafts_of, grow
from outrider.errors import ConfigError
from outrider.models.base import Model
from outrider.verify.arrays import Array
from outrider.verify.draft import Draft


def build(context: DrafterContext) -> Drafter:
    """The source ``layer_skip``.

    Raises:
        ConfigError: ``draft_layers`` exceeds the target's layers, or the target cannot run its first layers alone.
    """
    target, cache = context.require_target()
    if cache.states is not None:
        raise ConfigError(
            f"draft='layer_skip' runs the target's first layers alone, which the recurrent layers of "
            f"{target.config.family} do not allow: use another source"
        )
    if str(getattr(target, "implementation", "")).startswith("transformers"):
        raise ConfigError(
            f"draft='layer_skip' runs the target's first layers, and {target.config.family} runs through "
            "transformers' code as a whole: use another source"
        )
    count = target.config.num_layers
    layers = max(1, count // 3) if context.draft_layers is None else context.draft_layers
    if layers > count:
        raise ConfigError(f"draft_layers={layers} is more than the target's {count} layers: use fewer")
    return LayerSkipDrafter(target, cache, layers=layers, vocab_size=context.vocab_size)


class LayerSkipDrafter(Drafter):
    """Runs the first layers, then the final norm and LM head (LayerSkip, Elhoushi et al. 2024).

    The target's cache already has those layers' keys and values of committed tokens. A draft run writes those of the
    last token and the draft after them, into rows that the scheduler has reserved for this step:

        rows        0 .. cached-1 | last token | draft nodes ...
        layers < L  target's        draft run's, overwritten with equal values by the target's run
        layers >= L target's        not read by drafts

    Nothing needs undoing: the draft run's rows lie after the committed ones.
    """

    def __init__(self, model: Model, cache: KVCache, *, layers: int, vocab_size: int) -> None:
        """``model`` and ``cache``: the target's. ``layers``: the number of first layers that draft."""
        self._model, self._cache = model, cache
        self._layers, self._vocab_size = layers, vocab_size

    def propose(self, requests: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        """Drafts for requests with exactly one unread token, as these layers would otherwise read a prompt twice."""
        pending = [
            PendingDraft(request, request.slot, budget, self._vocab_size)
            for request, budget in zip(requests, budgets, strict=True)
            if budget > 0 and request.slot is not None and request.num_computed_tokens == len(request.tokens) - 1
        ]
        if pending:
            last = [
                Feed(s.slot, s.request.num_computed_tokens, s.request.tokens[-1:], (s.request.num_computed_tokens,))
                for s in pending
            ]
            grow(pending, self._feed(last), fits=self._fits, run=self._run, source="layer_skip")
        return drafts_of(pending, requests, "layer_skip")

    def _run(self, growing: Sequence[PendingDraft]) -> list[Array]:
        return self._feed([each.feed() for each in growing])

    def _feed(self, feeds: Sequence[Feed]) -> list[Array]:
        return run(self._model, self._cache, feeds, self._layers)

    def _fits(self, each: PendingDraft, rows: int) -> bool:
        return each.end + rows <= self._cache.length(each.slot)
