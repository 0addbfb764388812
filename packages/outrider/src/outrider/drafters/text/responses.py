"""Earlier responses of one domain, as a source of drafts for later ones."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from outrider.drafters.text.occurrences import GAP, TYPE, Tokens, occurrences

TOKEN_BYTES = 4
MOST_TOKENS = 1 << 16  # of a domain: each draft looks at all of them, which takes some 10 microseconds
_RESPONSE_BYTES = 250  # about, beside its tokens


class Responses:
    """The responses to the requests of one domain; a ``Store`` of ``utils.partitioned_store``.

    Their tokens stand in one array, the latest response last, with a gap behind each.
    """

    def __init__(self) -> None:
        self._ids: list[str] = []  # of their requests, in the order of the tokens
        self._starts: list[int] = []  # of their tokens
        self._by_use: OrderedDict[str, None] = OrderedDict()  # their requests, the least recently used first
        self.text: Tokens = array(TYPE)

    @property
    def tokens(self) -> int:
        """Tokens of all responses held."""
        return len(self.text) - len(self._ids)

    @property
    def size(self) -> int:
        return self.tokens * TOKEN_BYTES + len(self._ids) * _RESPONSE_BYTES

    def add(self, request_id: str, tokens: Sequence[int]) -> None:
        """Learn a response; it replaces an earlier response of the same request."""
        if request_id in self._by_use:
            self._forget(request_id)
        if not 2 <= len(tokens) <= MOST_TOKENS:  # a single token has no continuation to copy
            return
        while self.tokens + len(tokens) > MOST_TOKENS:
            self.evict()
        self._ids.append(request_id)
        self._starts.append(len(self.text))
        self._by_use[request_id] = None
        self.text.extend(tokens)
        self.text.append(GAP)

    def find(self, tail: Tokens, limit: int) -> list[tuple[int, int]]:
        """Places in ``text``, as ``occurrences``."""
        return occurrences(self.text, tail, limit)

    def used(self, places: Iterable[int]) -> None:
        """Mark the responses at these places of ``text`` as recently used: drafts were copied from them."""
        for place in places:
            self._by_use.move_to_end(self._ids[bisect_right(self._starts, place) - 1])

    def evict(self) -> None:
        """Drop the least recently used response, whole."""
        self._forget(next(iter(self._by_use)))

    def __len__(self) -> int:
        return len(self._ids)

    def _forget(self, request_id: str) -> None:
        del self._by_use[request_id]
        at = self._ids.index(request_id)
        start = self._starts[at]
        stop = self._starts[at + 1] if at + 1 < len(self._starts) else len(self.text)
        del self._ids[at], self._starts[at], self.text[start:stop]
        self._starts[at:] = [each - (stop - start) for each in self._starts[at:]]
