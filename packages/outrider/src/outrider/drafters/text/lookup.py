"""Prompt lookup: copy the continuation of an earlier occurrence of the last tokens (docs/algorithms/lookup.md)."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.drafters.api import Drafter, RequestView, SingleRequestDrafter
from outrider.drafters.context import DrafterContext
from outrider.verify.draft import EMPTY, Draft

MAX_MATCH = 8  # longer matches predict no better: among matches of this length the most recent is taken


def max_copy(match: int) -> int | None:
    """The most tokens to copy after a match of ``match`` tokens; None: no limit.

    On Spec-Bench summaries the first copied token was accepted in 28% of cases after a match of one token, 46% after
    two, 55% after three, 81% after eight (benchmarks/log.md, 2026-11-20). Each further token is less likely. A pass
    over 4 rows costs as much as a pass over 1, so even the shortest match may copy three.
    """
    return None if match >= MAX_MATCH else 1 + 2 * match


def match_confidence(match: int) -> float:
    """The acceptance rate of the first copied token by match length, on Spec-Bench summaries (benchmarks/log.md)."""
    return (0.28, 0.46, 0.55, 0.67, 0.67, 0.67, 0.67, 0.81)[min(match, MAX_MATCH) - 1]


class LatestMatches:
    """The end positions of every token and token pair, so that finding the longest match needs no scan."""

    def __init__(self) -> None:
        self._pairs: dict[tuple[int, int], list[int]] = {}
        self._singles: dict[int, int] = {}  # only the latest end of each token: a match of one token needs no other
        self._indexed = 0

    def extend(self, tokens: Sequence[int]) -> None:
        """Index every end but that of the sequence itself: a match must have a continuation."""
        for end in range(self._indexed + 1, len(tokens)):
            self._singles[tokens[end - 1]] = end
            if end >= 2:
                self._pairs.setdefault((tokens[end - 2], tokens[end - 1]), []).append(end)
        self._indexed = max(self._indexed, len(tokens) - 1)

    def longest_match(self, tokens: Sequence[int]) -> tuple[int, int]:
        """End and length of the longest earlier occurrence of a suffix of ``tokens``; (0, 0) if there is none.

        Ties go to the latest occurrence.

        ::

            a b c d a b c | ?      the suffix "a b c" occurred before, ending at 3, and was followed by d
        """
        n = len(tokens)
        best, best_length = self._singles.get(tokens[-1], 0), 1
        pair = (tokens[-2], tokens[-1]) if n > 1 else (-1, -1)
        for end in reversed(self._pairs.get(pair, ())):
            length = 2
            while length < min(MAX_MATCH, end) and tokens[end - length - 1] == tokens[n - length - 1]:
                length += 1
            if length > best_length:
                best, best_length = end, length
                if length == MAX_MATCH:
                    break
        return best, best_length if best else 0


def build(context: DrafterContext) -> Drafter:
    """The source ``lookup``."""
    return LookupDrafter()


class LookupDrafter(SingleRequestDrafter):
    """Copies the tokens after the longest earlier match of the text's last tokens (Saxena 2023).

    The longer the match, the longer the draft: see ``max_copy``.
    """

    def __init__(self) -> None:
        self._indexes: dict[str, LatestMatches] = {}

    def start(self, request: RequestView) -> None:
        self._indexes[request.id] = LatestMatches()

    def finish(self, request_id: str) -> None:
        self._indexes.pop(request_id, None)

    def draft(self, request: RequestView, budget: int) -> Draft:
        tokens, index = request.tokens, self._indexes[request.id]
        index.extend(tokens)
        end, match = index.longest_match(tokens)
        limit = max_copy(match)
        count = budget if limit is None else min(budget, limit)
        if match == 0 or count < 1:
            return EMPTY
        copied = list(tokens[end : end + count])
        period = len(tokens) - end
        while len(copied) < count:  # the copy reached the end of the text, which repeats with this period
            copied.append(copied[len(copied) - period])
        # Each accepted token lengthens the match by one.
        scores = [match_confidence(match + i) for i in range(count)]
        return Draft.chain(copied, source="lookup", scores=scores)
