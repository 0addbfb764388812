"""Drafts what the target itself held likely, when it last saw the same one or two tokens: trees from its own scores.

After Token Recycling (Luo et al. 2024, "Turning trash into treasure: accelerating inference of large language models
with token recycling"); what is different here is in docs/algorithms/recycling.md.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from outrider.core.draft import EMPTY, Draft
from outrider.drafters.api import Outcome, RequestView
from outrider.drafters.text.counts import log_counts

WIDTH = 8  # likeliest tokens that are remembered after a context
CAPACITY = 1 << 16  # contexts of all salts together, about 700 bytes each
_SINGLE = 0.4  # how much less is believed what followed one token rather than two
_NEGLIGIBLE = 1e-3  # joint probability of nodes that no budget should be spent on

Followers = tuple[tuple[int, float], ...]  # tokens and probabilities, the likeliest first


class _Key(NamedTuple):
    """A context as one salt sees it; ``before`` is -1 where only the last token counts."""

    salt: str
    before: int
    last: int


class Memory:
    """What may follow a pair of tokens, and a single one; the contexts longest unheard of are forgotten."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._after: OrderedDict[_Key, Followers] = OrderedDict()

    def learn(self, salt: str, before: int, last: int, followers: Followers) -> None:
        for key in (_Key(salt, before, last), _Key(salt, -1, last)):
            self._after[key] = followers
            self._after.move_to_end(key)
        while len(self._after) > self._capacity:
            self._after.popitem(last=False)

    def recall(self, salt: str, before: int, last: int) -> dict[int, float]:
        """Tokens with probabilities that sum to at most 1: those after the pair, then others after the last token."""
        pair = self._after.get(_Key(salt, before, last))
        single = self._after.get(_Key(salt, -1, last), ())
        if pair is None:
            return {token: _SINGLE * p for token, p in single}
        known = dict(pair)
        left = max(0.0, 1.0 - sum(known.values())) * _SINGLE
        return known | {token: left * p for token, p in single if token not in known}

    def __len__(self) -> int:
        return len(self._after)


class RecyclingDrafter:
    """Remembers what the target's rows said, accepted or not, and drafts trees of it; separate for each salt."""

    def __init__(self, vocab_size: int, capacity: int = CAPACITY) -> None:
        self._vocab_size = vocab_size
        self.memory = Memory(capacity)

    def start(self, request: RequestView) -> None:
        """Nothing to prepare: what is remembered belongs to no request."""

    def propose(self, requests: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        return [
            self._sample(r, min(budget, r.depth_limit)) if r.speculation.counts_as_q else self._grow(r, budget)
            for r, budget in zip(requests, budgets, strict=True)
        ]

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            draft, salt = outcome.draft, outcome.request.cache_salt
            base = len(outcome.request.tokens) - len(outcome.committed)
            earlier = [-1, *outcome.request.tokens[max(0, base - 2) : base]]
            for row, followers in enumerate(self._likeliest(outcome)):
                before, last = earlier[-2:]
                if row > 0:
                    parent = draft.parents[row - 1]
                    before, last = last if parent < 0 else draft.tokens[parent], draft.tokens[row - 1]
                self.memory.learn(salt, before, last, followers)

    def finish(self, request_id: str) -> None:
        """What was learned outlives the request."""

    def _grow(self, request: RequestView, budget: int) -> Draft:
        """The likeliest tree of at most ``budget`` nodes, or the likeliest chain, best first."""
        branching, salt = request.draws().takes_trees, request.cache_salt
        tokens: list[int] = []
        parents: list[int] = []
        scores: list[float] = []
        heap: list[tuple[float, int, float, int, int, int, int]] = []
        order = 0

        def offer(node: int, chance: float, depth: int, before: int, last: int) -> None:
            nonlocal order
            after = sorted(self.memory.recall(salt, before, last).items(), key=lambda one: -one[1])
            for token, p in after if branching else after[:1]:
                if chance * p > _NEGLIGIBLE:
                    order += 1  # ties go to the first found, as no two numbers are equal
                    heapq.heappush(heap, (-chance * p, order, p, node, token, depth, last))

        if budget > 0 and request.depth_limit > 0:
            offer(-1, 1.0, 0, *_last_two(request.tokens))
        while heap and len(tokens) < budget:
            negative, _, p, parent, token, depth, before = heapq.heappop(heap)
            tokens.append(token)
            parents.append(parent)
            scores.append(p)
            if depth + 1 < request.depth_limit and len(tokens) < budget:
                offer(len(tokens) - 1, -negative, depth + 1, before, token)
        return Draft(tuple(tokens), tuple(parents), None, "recycling", tuple(scores)) if tokens else EMPTY

    def _sample(self, request: RequestView, budget: int) -> Draft:
        """A chain drawn from what is remembered, which is its ``q``."""
        draws = request.draws()
        before, last = _last_two(request.tokens)
        drafted: list[int] = []
        rows: list[Tensor] = []
        scores: list[float] = []
        while len(drafted) < budget and (after := self.memory.recall(request.cache_salt, before, last)):
            rows.append(log_counts(after, self._vocab_size))
            before, last = last, draws.draw(rows[-1], depth=len(drafted), node=len(drafted))
            drafted.append(last)
            scores.append(after[last])
        return Draft.chain(drafted, q_logits=torch.stack(rows), source="recycling", scores=scores) if drafted else EMPTY

    def _likeliest(self, outcome: Outcome) -> Iterator[Followers]:
        """The likeliest tokens of each of the target's rows, and their probabilities."""
        tokens, probabilities = outcome.p.likeliest(WIDTH)
        for row, chances in zip(tokens.tolist(), probabilities.tolist(), strict=True):
            yield tuple((token, p) for token, p in zip(row, chances, strict=True) if p > 0 and token < self._vocab_size)


def _last_two(tokens: Sequence[int]) -> tuple[int, int]:
    return (tokens[-2] if len(tokens) > 1 else -1), tokens[-1]
