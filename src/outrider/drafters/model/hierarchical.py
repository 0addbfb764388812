"""A draft model that is itself drafted for (docs/algorithms/hierarchical.md)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from outrider.cache import KVCache
from outrider.core.draft import EMPTY, Draft
from outrider.drafters.api import Drafter, Outcome, RequestView
from outrider.drafters.draft_cache import CATCH_UP_CHUNK, DraftModel, Place
from outrider.drafters.model.request_views import ahead
from outrider.drafters.trees.pending_draft import Sapling


class HierarchicalDrafter:
    """Proposes the very chains that ``ModelDrafter`` does, in fewer runs of its model.

    Each run scores a chain of an inner source, and what the model itself draws, row by row, is kept as far as the
    inner chain agrees, and one token further: matching, with the draft model in the target's place.
    """

    def __init__(self, model: DraftModel, inner: Drafter) -> None:
        """``inner`` drafts chains whose tokens it may take from any view of a request, committed or not."""
        self._model, self._inner = model, inner

    @property
    def caches(self) -> Sequence[KVCache]:
        return (self._model.cache, *getattr(self._inner, "caches", ()))

    def start(self, request: RequestView) -> None:
        self._model.start(request.id)
        self._inner.start(request)

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        self._inner.observe(outcomes)

    def finish(self, request_id: str) -> None:
        self._model.finish(request_id)
        self._inner.finish(request_id)

    def propose(self, requests: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        chains: dict[str, Sapling] = {}
        for request, budget in zip(requests, budgets, strict=True):
            budget = min(budget, self._model.room(len(request.tokens)))
            if budget > 0:
                place = self._model.places[request.id]
                chains[request.id] = Sapling(request, place.slot, budget, self._model.vocab_size)
                self._model.cut(place, request.tokens, len(request.tokens) - 1)
        growing = self._read_prompts(list(chains.values()))
        while growing:
            growing = self._round(growing)
        return [chains[r.id].draft("hierarchical") if r.id in chains else EMPTY for r in requests]

    def _read_prompts(self, chains: Sequence[Sapling]) -> list[Sapling]:
        """Read all but the last token where that takes more than one run; the chains that can grow."""
        long = [c for c in chains if len(c.request.tokens) - len(self._place(c).cached) > CATCH_UP_CHUNK]
        read = self._model.read([(self._place(c), c.request.tokens[:-1]) for c in long])
        return [c for c in chains if c not in long or long.index(c) in read]

    def _round(self, chains: Sequence[Sapling]) -> list[Sapling]:
        """One run of the model over inner drafts for all chains, grown as far as these were right; those not done."""
        guesses = self._guess(chains)
        work: list[tuple[Place, list[int], int]] = []
        growing: list[tuple[Sapling, Sequence[int]]] = []
        for chain, guess in zip(chains, guesses, strict=True):
            place = self._place(chain)
            tokens = [*chain.request.tokens, *chain.tokens, *guess][len(place.cached) :]
            if self._model.fits(place, len(tokens)):
                work.append((place, tokens, 1 + len(guess)))
                growing.append((chain, guess))
        if not work:
            return []
        for (chain, guess), logits in zip(growing, self._model.feed(work), strict=True):
            _keep(chain, guess, logits)
            # The last token is fed again, for its logits.
            text = [*chain.request.tokens, *chain.tokens]
            self._model.cut(self._place(chain), text, len(text) - 1)
        return [chain for chain, _ in growing if chain.wants and chain.promising("hierarchical")]

    def _guess(self, chains: Sequence[Sapling]) -> list[Sequence[int]]:
        """The inner source's chains, each leaving room for the draw after its last token."""
        left = [chain.room - 1 for chain in chains]
        asked = [i for i, budget in enumerate(left) if budget > 0]
        if not asked:
            return [()] * len(chains)
        views = [ahead(chains[i].request, chains[i].tokens, left[i]) for i in asked]
        drafts = dict(zip(asked, self._inner.propose(views, [left[i] for i in asked]), strict=True))
        return [drafts[i].tokens if i in drafts else () for i in range(len(chains))]

    def _place(self, chain: Sapling) -> Place:
        return self._model.places[chain.request.id]


def _keep(chain: Sapling, guess: Sequence[int], logits: Tensor) -> None:
    """Draw from row after row, [1 + len(guess), vocab], as long as the guess before it was what was drawn."""
    for i in range(len(logits)):
        chain.extend(logits[i : i + 1])
        if not chain.wants or i == len(guess) or chain.tokens[-1] != guess[i]:
            return
