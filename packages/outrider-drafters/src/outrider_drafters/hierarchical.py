"""A draft model that is itself accelerated by drafts (docs/algorithms/hierarchical.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

from outrider.cache import KVCache
from outrider.drafters.api import Drafter, Outcome, RequestView
from outrider.drafters.context import DrafterContext
from outrider.drafters.cost import DraftingCost, time_drafts
from outrider.drafters.draft_cache import PREFILL_CHUNK, CachedSequence, DraftModel
from outrider.drafters.model.model import ModelDrafter, pending_drafts
from outrider.drafters.text.ngram import NgramDrafter
from outrider.drafters.trees.pending_draft import PendingDraft, drafts_of
from outrider.verify.arrays import Array
from outrider.verify.draft import Draft
from outrider_drafters.request_views import as_chain, with_drafted


def build(context: DrafterContext) -> Drafter:
    """The source ``hierarchical``: the first draft model, with drafts from the second, else from n-grams."""
    model, *others = context.cached_draft_models
    return HierarchicalDrafter(model, ModelDrafter(others[0]) if others else NgramDrafter(context.vocab_size))


class HierarchicalDrafter(Drafter):
    """Proposes the same chains as ``ModelDrafter``, in fewer runs of its model.

    Each run scores a chain of an inner source. The model's own draws, row by row, are kept as long as the inner
    chain agrees, plus one: the matching rule, with the draft model as the target.
    """

    def __init__(self, model: DraftModel, inner: Drafter) -> None:
        """``inner``: drafts chains for any view of a request, including uncommitted tokens."""
        self._model, self._inner = model, inner

    @property
    def caches(self) -> Sequence[KVCache]:
        return (self._model.cache, *self._inner.caches)

    def time_drafts(self) -> DraftingCost | None:
        costs = [cost for cost in (time_drafts(self._model.model), self._inner.time_drafts()) if cost is not None]
        # One run may score several levels, so a level may cost almost nothing.
        return replace(reduce(DraftingCost.plus, costs), level=0.0) if costs else None

    def start(self, request: RequestView) -> None:
        self._model.start(request.id, request.input)
        self._inner.start(request)

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        self._inner.observe(outcomes)

    def finish(self, request_id: str) -> None:
        self._model.finish(request_id)
        self._inner.finish(request_id)

    def propose(self, requests: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        chains = pending_drafts(self._model, [as_chain(request) for request in requests], budgets)
        growing = self._read_prompts(chains)
        while growing:
            growing = self._round(growing)
        return drafts_of(chains, requests, "hierarchical")

    def _read_prompts(self, chains: Sequence[PendingDraft]) -> list[PendingDraft]:
        """Read all tokens except the last where that takes several runs; return the chains that can grow."""
        long = [c for c in chains if len(c.request.tokens) - len(self._sequence(c).cached) > PREFILL_CHUNK]
        texts = [(self._sequence(c), c.request.tokens[:-1]) for c in long]
        read = self._model.prefill(texts, lambda: long[0].request.seconds_left)
        return [c for c in chains if c not in long or long.index(c) in read]

    def _round(self, chains: Sequence[PendingDraft]) -> list[PendingDraft]:
        """Run the model over inner drafts of all chains, extend the chains, and return the unfinished ones."""
        guesses = self._guess(chains)
        work: list[tuple[CachedSequence, list[int], int]] = []
        growing: list[tuple[PendingDraft, Sequence[int]]] = []
        for chain, guess in zip(chains, guesses, strict=True):
            sequence = self._sequence(chain)
            tokens = [*chain.request.tokens, *chain.tokens, *guess][len(sequence.cached) :]
            if self._model.can_extend(sequence, len(tokens)):
                work.append((sequence, tokens, 1 + len(guess)))
                growing.append((chain, guess))
        if not work:
            return []
        for (chain, guess), logits in zip(growing, self._model.extend(work), strict=True):
            _keep(chain, guess, logits)
            # The last token is fed again for its logits.
            text = [*chain.request.tokens, *chain.tokens]
            self._model.truncate(self._sequence(chain), text, len(text) - 1)
        return [chain for chain, _ in growing if chain.frontier_size and chain.should_continue("hierarchical")]

    def _guess(self, chains: Sequence[PendingDraft]) -> list[Sequence[int]]:
        """The inner source's chains, each with room for the draw after its last token."""
        left = [chain.room - 1 for chain in chains]
        asked = [i for i, budget in enumerate(left) if budget > 0]
        if not asked:
            return [()] * len(chains)
        views = [with_drafted(chains[i].request, chains[i].tokens, left[i]) for i in asked]
        drafts = dict(zip(asked, self._inner.propose(views, [left[i] for i in asked]), strict=True))
        return [drafts[i].tokens if i in drafts else () for i in range(len(chains))]

    def _sequence(self, chain: PendingDraft) -> CachedSequence:
        return self._model.sequences[chain.request.id]


def _keep(chain: PendingDraft, guess: Sequence[int], logits: Array) -> None:
    """Draw from each row of logits [1 + len(guess), vocab] in order, while draws equal the guesses."""
    for i in range(len(logits)):
        chain.extend(logits[i : i + 1])
        if not chain.frontier_size or i == len(guess) or chain.tokens[-1] != guess[i]:
            return
