"""Draft sources of negligible cost: random tokens, unigrams and bigrams (Leviathan et al. 2023, section 3.6)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from outrider.drafters.api import Drafter, RequestView, SingleRequestDrafter
from outrider.drafters.context import DrafterContext
from outrider.drafters.text.counts import Counts, CountsDrafter
from outrider.drafters.text.ngram import NgramTable
from outrider.verify.draft import EMPTY, Draft
from outrider_drafters.draft_table import DraftTable


class Unigrams:
    """Counts of each token in one request."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._best: int | None = None
        self._total = 0

    def update(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            count = self._counts[token] = self._counts.get(token, 0) + 1
            if self._best is None or count >= self._counts[self._best]:  # ties: the most recent
                self._best = token
        self._total += len(tokens)

    def followers(self, context: Sequence[int]) -> dict[int, int] | None:
        return self._counts or None

    def best(self, context: Sequence[int]) -> tuple[int, float] | None:
        return None if self._best is None else (self._best, self._counts[self._best] / self._total)


def unigram(vocab_size: int, table: DraftTable | None = None) -> CountsDrafter:
    """Repeats the most frequent token; counts are from a trained table, or live from the request."""
    make: Callable[[], Counts] = Unigrams if table is None else _always(table.unigrams)
    return CountsDrafter("unigram", vocab_size, make, context=1)


def bigram(vocab_size: int, table: DraftTable | None = None) -> CountsDrafter:
    """Drafts the most frequent follower of the last token, from a trained table, or live from the request."""
    make: Callable[[], Counts] = (lambda: NgramTable(2, 2)) if table is None else _always(table.bigrams)
    return CountsDrafter("bigram", vocab_size, make, context=1)


def _always(counts: Counts) -> Callable[[], Counts]:
    """The same fixed counts for every request."""
    return lambda: counts


def build_unigram(context: DrafterContext) -> Drafter:
    """The source ``unigram``."""
    return unigram(context.vocab_size, _table(context))


def build_bigram(context: DrafterContext) -> Drafter:
    """The source ``bigram``."""
    return bigram(context.vocab_size, _table(context))


def _table(context: DrafterContext) -> DraftTable | None:
    """The engine's trained counts, if it has any."""
    if context.draft_table is None:
        return None
    table = DraftTable.load(Path(context.draft_table))
    table.check_vocabulary(context.vocab_size)
    return table


def build_random(context: DrafterContext) -> Drafter:
    """The source ``random``."""
    return RandomDrafter(context.vocab_size)


class RandomDrafter(SingleRequestDrafter):
    """Uniformly random tokens: a baseline for sources, and a test of verifiers."""

    def __init__(self, vocab_size: int) -> None:
        self._uniform = np.zeros(vocab_size, np.float32)

    def draft(self, request: RequestView, budget: int) -> Draft:
        if budget < 1:
            return EMPTY
        draws = request.draws()
        tokens = [draws.draw(self._uniform, depth=i, node=i) for i in range(budget)]
        q = None if draws.shares_noise else np.broadcast_to(self._uniform, (budget, len(self._uniform)))
        return Draft.chain(tokens, q_logits=q, source="random", scores=[1 / len(self._uniform)] * budget)
