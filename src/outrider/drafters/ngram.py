"""N-gram tables with back-off, learned live from the prompt and the output (docs/algorithms/ngram.md)."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

from outrider.core.draft import EMPTY, Draft
from outrider.drafters.base import Outcome, RequestView
from outrider.drafters.growth import Choices, new_tree, tokens_to

MAX_ORDER = 4  # 4-grams: a context of three tokens and the token after it
MIN_ORDER = 2
WINDOW = 512  # tokens of history kept

_FNV_OFFSET = 14695981039346656037
_FNV_PRIME = 1099511628211
_MASK64 = (1 << 64) - 1


def context_hash(tokens: Sequence[int]) -> int:
    """64-bit FNV-1a over whole token ids (Fowler, Noll and Vo), so that tables need no tuples as keys."""
    h = _FNV_OFFSET
    for token in tokens:
        h = ((h ^ token) * _FNV_PRIME) & _MASK64
    return h


class NgramTable:
    """How often each token followed each context of one to three tokens.

    ::

        counts[4][hash(the, cat, sat)] = {on: 47, down: 3}      longest context first,
        counts[3][hash(cat, sat)]      = {on: 60, down: 9}      then shorter ones
        counts[2][hash(sat)]           = {on: 71, down: 30}

    ``history`` holds the last ``WINDOW`` tokens, where contexts come from; counts are kept for the whole request.
    """

    def __init__(self, min_order: int = MIN_ORDER, max_order: int = MAX_ORDER) -> None:
        self._orders = range(max_order, min_order - 1, -1)
        self._counts: dict[int, dict[int, dict[int, int]]] = {order: {} for order in self._orders}
        self.history: deque[int] = deque(maxlen=WINDOW)

    def update(self, tokens: Sequence[int]) -> None:
        """Count each token after every context that precedes it."""
        for token in tokens:
            for order in self._orders:
                if len(self.history) >= order - 1:
                    key = context_hash([self.history[i] for i in range(1 - order, 0)])
                    followers = self._counts[order].setdefault(key, {})
                    # Moving the token to the end makes the most recent of equally frequent ones the last.
                    followers[token] = followers.pop(token, 0) + 1
            self.history.append(token)

    def followers(self, context: Sequence[int]) -> dict[int, int] | None:
        """Counts of the tokens seen after the longest known suffix of ``context``, or None."""
        for order in self._orders:
            if len(context) >= order - 1:
                found = self._counts[order].get(context_hash(context[len(context) - order + 1 :]))
                if found is not None:
                    return found
        return None


def most_frequent(followers: dict[int, int]) -> int:
    """The token with the highest count, the most recently seen of equals."""
    return max(reversed(followers), key=followers.__getitem__)


def ranked(followers: dict[int, int], count: int) -> Choices:
    """The tokens with the highest counts, ``most_frequent`` first, with their shares as probabilities."""
    tokens = list(reversed(followers))  # the most recent first, of equals too
    tokens.sort(key=followers.__getitem__, reverse=True)
    total = math.log(sum(followers.values()))
    return Choices(tokens[:count], [math.log(followers[token]) - total for token in tokens[:count]])


class NgramDrafter:
    """Drafts the continuation its tables know, chaining its own predictions.

    With ``ngram_counts_as_q`` tokens are drawn from the counts, as a distribution ``q``, instead of taking the
    most frequent: for verifiers that compare ``p`` with ``q``.
    """

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._tables: dict[str, NgramTable] = {}

    def start(self, request: RequestView) -> None:
        table = NgramTable()
        table.update(request.tokens)
        self._tables[request.id] = table

    def propose(self, requests: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        return [
            self._chain(r, budget) if r.speculation.tree is None else self._tree(r, budget)
            for r, budget in zip(requests, budgets, strict=True)
        ]

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            self._tables[outcome.request.id].update(outcome.committed)

    def finish(self, request_id: str) -> None:
        self._tables.pop(request_id, None)

    def _tree(self, request: RequestView, budget: int) -> Draft:
        table, draws = self._tables[request.id], request.draws()
        tree = new_tree(request.speculation, budget, request.depth_limit)
        recent = request.tokens[-(MAX_ORDER - 1) :]
        while tree.wanted:
            found: list[Choices] = []
            for node in tree.wanted:
                path = tokens_to(tree, node)
                followers = table.followers([*recent, *path][-(MAX_ORDER - 1) :])
                if followers is None:
                    found.append(Choices(()))
                elif request.speculation.ngram_counts_as_q and not tree.ranks:
                    row = self._log_counts(followers)
                    drawn = draws.siblings(row, tree.width(node), depth=len(path), node=tree.key(node))
                    found.append(Choices(drawn, q=row))
                else:
                    found.append(ranked(followers, tree.width(node)))
            tree.extend(found)
        return tree.draft("ngram")

    def _chain(self, request: RequestView, budget: int) -> Draft:
        table = self._tables[request.id]
        sample = request.speculation.ngram_counts_as_q
        draws = request.draws()
        context = list(request.tokens[-(MAX_ORDER - 1) :])
        drafted: list[int] = []
        rows: list[Tensor] = []
        scores: list[float] = []
        while len(drafted) < budget:
            followers = table.followers(context[-(MAX_ORDER - 1) :])
            if followers is None:
                break
            if sample:
                rows.append(self._log_counts(followers))
                token = draws.draw(rows[-1], depth=len(drafted), node=len(drafted))
            else:
                token = most_frequent(followers)
            drafted.append(token)
            scores.append(followers[token] / sum(followers.values()))
            context.append(token)
        if not drafted:
            return EMPTY
        return Draft.chain(drafted, q=torch.stack(rows) if sample else None, source="ngram", scores=scores)

    def _log_counts(self, followers: dict[int, int]) -> Tensor:
        """float32 [vocab]: log of each follower's count, -inf elsewhere."""
        row = torch.full((self._vocab_size,), float("-inf"))
        tokens = torch.tensor(list(followers))
        row[tokens] = torch.tensor(list(followers.values()), dtype=torch.float32).log()
        return row
