"""Chains and trees from token counts, for unigram, bigram and n-gram sources."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from outrider.drafters.api import Outcome, RequestView, SingleRequestDrafter
from outrider.drafters.trees.builders import Choices, make_tree_builder, tokens_to
from outrider.verify.arrays import Floats
from outrider.verify.draft import EMPTY, Draft
from outrider.verify.verifiers.base import DraftSampler

_DISCOUNT = 0.5  # subtracted from a count


class Counts(Protocol):
    """Which tokens followed a context, and how often."""

    def update(self, tokens: Sequence[int]) -> None:
        """Learn the next tokens of the request; a fixed table ignores them."""
        ...

    def followers(self, context: Sequence[int]) -> dict[int, int] | None:
        """Counts of the tokens seen after this context, the most recent token last; None for an unseen context."""
        ...

    def best(self, context: Sequence[int]) -> tuple[int, float] | None:
        """The token seen most often after this context and its share, or None."""
        ...


class CountsDrafter(SingleRequestDrafter):
    """Drafts the most frequent next token, appends it to the context, and repeats.

    With ``counts_as_q`` the tokens are drawn from the counts as a distribution ``q``, for verifiers that compare
    ``p`` with ``q``.
    """

    def __init__(self, name: str, vocab_size: int, make: Callable[[], Counts], *, context: int) -> None:
        """``make`` gives the counts of one request (a fixed table may be shared); ``context``: tokens of look-back."""
        self._name = name
        self._vocab_size = vocab_size
        self._make = make
        self._context = context
        self._counts: dict[str, Counts] = {}

    def start(self, request: RequestView) -> None:
        counts = self._make()
        counts.update(request.tokens)
        self._counts[request.id] = counts

    def draft(self, request: RequestView, budget: int) -> Draft:
        if request.speculation.tree is not None:
            return self._tree(request, budget)
        return self._sampled_chain(request, budget) if request.speculation.counts_as_q else self._chain(request, budget)

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            self._counts[outcome.request.id].update(outcome.committed)

    def finish(self, request_id: str) -> None:
        self._counts.pop(request_id, None)

    def _tree(self, request: RequestView, budget: int) -> Draft:
        counts, draws = self._counts[request.id], request.draws()
        tree = make_tree_builder(request.speculation, budget, request.depth_limit)
        recent = request.tokens[-self._context :]
        while tree.frontier:
            found: list[Choices] = []
            for node in tree.frontier:
                path = tokens_to(tree, node)
                followers = counts.followers([*recent, *path][-self._context :])
                if followers is None:
                    found.append(Choices(()))
                elif request.speculation.counts_as_q and not tree.ranks:
                    row = log_counts(followers, self._vocab_size)
                    drawn = draws.siblings(row, tree.width(node), depth=len(path), node=tree.key(node))
                    found.append(Choices(drawn.tokens, q_logits=drawn.rows))
                else:
                    found.append(ranked(followers, tree.width(node)))
            tree.extend(found)
        return tree.draft(self._name)

    def _chain(self, request: RequestView, budget: int) -> Draft:
        """A chain of the most frequent next tokens."""
        counts, context = self._counts[request.id], list(request.tokens[-self._context :])
        drafted: list[int] = []
        scores: list[float] = []
        while len(drafted) < budget and (best := counts.best(context)) is not None:
            drafted.append(best[0])
            scores.append(best[1])
            context = [*context, best[0]][-self._context :]
        return Draft.chain(drafted, source=self._name, scores=scores) if drafted else EMPTY

    def _sampled_chain(self, request: RequestView, budget: int) -> Draft:
        """A chain drawn from the counts, its ``q``."""
        counts, recent = self._counts[request.id], request.tokens[-self._context :]

        def after(drafted: Sequence[int]) -> dict[int, int] | None:
            return counts.followers([*recent, *drafted][-self._context :])

        return sampled_chain(self._name, request.draws(), after, budget, self._vocab_size, normalised=False)


def sampled_chain(
    source: str,
    draws: DraftSampler,
    after: Callable[[Sequence[int]], Mapping[int, float] | None],
    budget: int,
    vocab_size: int,
    *,
    normalised: bool = True,
) -> Draft:
    """A chain of at most ``budget`` tokens drawn from weights, its ``q`` up to normalisation.

    Args:
        after: the weights of the next token, given the tokens drafted so far; None or no weights end the chain.
        normalised: whether the weights already are probabilities.
    """
    drafted: list[int] = []
    rows: list[Floats] = []
    scores: list[float] = []
    while len(drafted) < budget and (weights := after(drafted)):
        rows.append(log_counts(weights, vocab_size))
        token = draws.draw(rows[-1], depth=len(drafted), node=len(drafted))
        drafted.append(token)
        scores.append(weights[token] if normalised else weights[token] / sum(weights.values()))
    return Draft.chain(drafted, q_logits=np.stack(rows), source=source, scores=scores) if drafted else EMPTY


def ranked(followers: dict[int, int], count: int) -> Choices:
    """The ``count`` tokens with the highest counts, scored by ``share``. Ties go to the most recent token."""
    tokens = heapq.nlargest(count, reversed(followers), key=followers.__getitem__)
    total = sum(followers.values())
    return Choices(tokens, [math.log(share(followers[token], total)) for token in tokens])


def share(count: float, total: float) -> float:
    """The discounted probability of a token seen ``count`` times of ``total``.

    A token seen every time so far need not come again: on Spec-Bench, without context, it did in 44% of cases.
    """
    return (count - _DISCOUNT) / (total + _DISCOUNT)


def log_counts(counts: Mapping[int, float], vocab_size: int) -> Floats:
    """float32 [vocab_size]: log of each token's count, -inf elsewhere."""
    row = np.full(vocab_size, -np.inf, np.float32)
    row[list(counts)] = np.log(np.array(list(counts.values()), np.float32))
    return row
