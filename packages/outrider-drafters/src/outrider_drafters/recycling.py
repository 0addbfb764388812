"""Drafts trees of the target's own likely tokens, remembered since it last read the same one or two tokens.

After Token Recycling (Luo et al. 2024, "Turning trash into treasure: accelerating inference of large language models
with token recycling"); differences are in docs/algorithms/recycling.md.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

from outrider.drafters.api import Drafter, Outcome, RequestView, SingleRequestDrafter
from outrider.drafters.context import DrafterContext
from outrider.drafters.text.best_first import Children, best_first
from outrider.drafters.text.counts import sampled_chain
from outrider.utils.partitioned_store import Handle, PartitionedStore
from outrider.verify.draft import Draft

WIDTH = 8  # most likely tokens remembered per context
CONTEXT_BYTES = 700  # about, of a context with the tokens after it
CAPACITY = (1 << 16) * CONTEXT_BYTES  # bytes of all domains together
_SINGLE = 0.4  # factor on probabilities from one token of context instead of two
_LEAST = 1e-3  # nodes of lower joint probability are not drafted

Followers = tuple[tuple[int, float], ...]  # tokens and probabilities, most likely first
Key = tuple[int, int]  # the last two tokens; -1 and the last token for a context of one


class FollowerMemory:
    """Followers of token pairs and of single tokens in one domain; a ``Store`` of ``utils.partitioned_store``."""

    def __init__(self) -> None:
        self._after: OrderedDict[Key, Followers] = OrderedDict()

    @property
    def size(self) -> int:
        return len(self._after) * CONTEXT_BYTES

    def learn(self, before: int, last: int, followers: Followers) -> None:
        for key in ((before, last), (-1, last)):
            self._after[key] = followers
            self._after.move_to_end(key)

    def evict(self) -> None:
        """Drop the least recently seen context."""
        self._after.popitem(last=False)

    def recall(self, before: int, last: int) -> dict[int, float]:
        """Tokens with probabilities that sum to at most 1: those after the pair, then others after the last token."""
        pair = self._after.get((before, last))
        single = self._after.get((-1, last), ())
        if pair is None:
            return {token: _SINGLE * p for token, p in single}
        known = dict(pair)
        left = max(0.0, 1.0 - sum(known.values())) * _SINGLE
        return known | {token: left * p for token, p in single if token not in known}

    def __len__(self) -> int:
        return len(self._after)


def build(context: DrafterContext) -> Drafter:
    """The source ``recycling``."""
    return RecyclingDrafter(context.vocab_size)


class RecyclingDrafter(SingleRequestDrafter):
    """Remembers the most likely tokens of the target's rows, accepted or not, and drafts trees of them."""

    def __init__(self, vocab_size: int, capacity: int = CAPACITY) -> None:
        """``capacity``: bytes of memory for all domains together."""
        self._vocab_size = vocab_size
        self.memories = PartitionedStore(FollowerMemory, capacity)
        self._handles: dict[str, Handle[FollowerMemory]] = {}  # by request

    def start(self, request: RequestView) -> None:
        self._handles[request.id] = self.memories.open(request.cache_salt, request.tenant)

    def finish(self, request_id: str) -> None:
        handle = self._handles.pop(request_id, None)
        if handle is not None:
            self.memories.close(handle)

    def draft(self, request: RequestView, budget: int) -> Draft:
        if request.speculation.counts_as_q:
            return self._sampled_chain(request, min(budget, request.depth_limit))
        return self._tree(request, budget)

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            draft, handle = outcome.draft, self._handles[outcome.request.id]
            base = len(outcome.request.tokens) - len(outcome.committed)
            earlier = [-1, *outcome.request.tokens[max(0, base - 2) : base]]
            for row, followers in enumerate(self._likeliest(outcome)):
                before, last = earlier[-2:]
                if row > 0:
                    parent = draft.parents[row - 1]
                    before, last = last if parent < 0 else draft.tokens[parent], draft.tokens[row - 1]
                handle.store.learn(before, last, followers)
            self.memories.settle(handle)

    def _tree(self, request: RequestView, budget: int) -> Draft:
        """The most likely tree of at most ``budget`` nodes, or the most likely chain."""
        branching, memory = request.draws().takes_trees, self._handles[request.id].store

        def expand(pair: tuple[int, int]) -> Children[tuple[int, int]]:
            after = sorted(memory.recall(*pair).items(), key=lambda one: -one[1])
            return [(token, p, (pair[1], token)) for token, p in (after if branching else after[:1])]

        pair, depth = _last_two(request.tokens), request.depth_limit
        return best_first("recycling", pair, expand, budget=budget, depth=depth, least=_LEAST)

    def _sampled_chain(self, request: RequestView, budget: int) -> Draft:
        """A chain drawn from the remembered distribution, its ``q``."""
        tail, memory = list(_last_two(request.tokens)), self._handles[request.id].store

        def after(drafted: Sequence[int]) -> dict[int, float]:
            before, last = [*tail, *drafted][-2:]
            return memory.recall(before, last)

        return sampled_chain("recycling", request.draws(), after, budget, self._vocab_size)

    def _likeliest(self, outcome: Outcome) -> Iterator[Followers]:
        """The most likely tokens of each of the target's rows, with their probabilities."""
        tokens, probabilities = outcome.p.likeliest(WIDTH)
        for row, chances in zip(tokens.tolist(), probabilities.tolist(), strict=True):
            yield tuple((token, p) for token, p in zip(row, chances, strict=True) if p > 0 and token < self._vocab_size)


def _last_two(tokens: Sequence[int]) -> tuple[int, int]:
    return (tokens[-2] if len(tokens) > 1 else -1), tokens[-1]
