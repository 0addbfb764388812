"""Copy what followed the last time the context ended like this (prompt lookup; docs/algorithms/lookup.md)."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.core.draft import EMPTY, Draft
from outrider.drafters.base import Outcome, RequestView

MAX_MATCH = 8  # longer agreements choose no better: what counts is the most recent of the longest matches
MIN_MATCH = 2


class SuffixIndex:
    """Where each run of ``MIN_MATCH`` tokens ended before, so that a longest match is found without a scan."""

    def __init__(self) -> None:
        self._ends: dict[tuple[int, ...], list[int]] = {}
        self._indexed = 0

    def extend(self, tokens: Sequence[int]) -> None:
        """Index runs up to, but without, the one that ends the sequence: a match must have a continuation."""
        for end in range(max(self._indexed, MIN_MATCH), len(tokens)):
            self._ends.setdefault(tuple(tokens[end - MIN_MATCH : end]), []).append(end)
        self._indexed = max(self._indexed, len(tokens))

    def longest_match(self, tokens: Sequence[int]) -> int | None:
        """End of the longest earlier occurrence of the sequence's own suffix, the latest of equals; or None.

        ::

            a b c d a b c | ?      suffix "a b c" occurred before, ending at 3: what followed is d
        """
        best, best_length = None, 0
        n = len(tokens)
        for end in reversed(self._ends.get(tuple(tokens[n - MIN_MATCH :]), ())):
            length = MIN_MATCH
            while length < min(MAX_MATCH, end) and tokens[end - length - 1] == tokens[n - length - 1]:
                length += 1
            if length > best_length:
                best, best_length = end, length
                if length == MAX_MATCH:
                    break
        return best


class LookupDrafter:
    """Continues as the text did after the longest earlier match of its last tokens (Saxena 2023)."""

    def __init__(self) -> None:
        self._indexes: dict[str, SuffixIndex] = {}

    def start(self, request: RequestView) -> None:
        self._indexes[request.id] = SuffixIndex()

    def propose(self, requests: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        return [self._propose(r, budget) for r, budget in zip(requests, budgets, strict=True)]

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Nothing to do: the index follows the request's tokens."""

    def finish(self, request_id: str) -> None:
        self._indexes.pop(request_id, None)

    def _propose(self, request: RequestView, budget: int) -> Draft:
        tokens, index = request.tokens, self._indexes[request.id]
        index.extend(tokens)
        end = index.longest_match(tokens)
        if end is None or budget < 1:
            return EMPTY
        copied = list(tokens[end : end + budget])
        period = len(tokens) - end
        while len(copied) < budget:  # the match overlaps the end: the text repeats with this period
            copied.append(copied[len(copied) - period])
        return Draft.chain(copied, source="lookup")
