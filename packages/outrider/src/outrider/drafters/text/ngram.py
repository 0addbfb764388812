"""N-gram tables with back-off, learned live from the prompt and the output (docs/algorithms/ngram.md)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from outrider.drafters.api import Drafter
from outrider.drafters.context import DrafterContext
from outrider.drafters.text.counts import CountsDrafter, share

MAX_ORDER = 4  # 4-grams: a context of three tokens and the token after it
MIN_ORDER = 2
WINDOW = 512  # tokens of history kept

_FNV_OFFSET = 14695981039346656037
_FNV_PRIME = 1099511628211
_MASK64 = (1 << 64) - 1


def context_hash(tokens: Sequence[int]) -> int:
    """64-bit FNV-1a over whole token ids (Fowler, Noll and Vo): a table key that is smaller than a tuple."""
    h = _FNV_OFFSET
    for token in tokens:
        h = ((h ^ token) * _FNV_PRIME) & _MASK64
    return h


class NgramTable:
    """How often each token followed each context of one to three tokens.

    ::

        counts[4][hash(the, cat, sat)] = {on: 47, down: 3}      longest context first,
        counts[3][hash(cat, sat)]      = {on: 60, down: 9}      then shorter contexts
        counts[2][hash(sat)]           = {on: 71, down: 30}

    ``history`` holds the last ``WINDOW`` tokens, the source of contexts; counts are kept for the whole request.
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
                    # Moving the token to the end of the dict records that it is the most recent.
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

    def best(self, context: Sequence[int]) -> tuple[int, float] | None:
        """The most frequent next token (ties: the most recent) and its ``share``; None for an unseen context."""
        found = self.followers(context)
        if found is None:
            return None
        token = most_frequent(found)
        return token, share(found[token], sum(found.values()))


def most_frequent(followers: dict[int, int]) -> int:
    """The token with the highest count; ties go to the most recent."""
    return max(reversed(followers), key=followers.__getitem__)


def build(context: DrafterContext) -> Drafter:
    """The source ``ngram``."""
    return NgramDrafter(context.vocab_size)


class NgramDrafter(CountsDrafter):
    """Drafts with an ``NgramTable`` of the request's own tokens."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__("ngram", vocab_size, NgramTable, context=MAX_ORDER - 1)
