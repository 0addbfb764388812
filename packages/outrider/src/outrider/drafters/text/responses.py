"""Earlier responses of one domain, as a source of drafts for later ones."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from outrider.drafters.datastore import Occurrence
from outrider.drafters.text.suffix_index import SuffixIndex

TOKEN_BYTES = 200  # approximate memory of a token and its index entries


@dataclass(frozen=True)
class _Response:
    request_id: str
    length: int


class Responses:
    """The responses to the requests of one domain; a ``Store`` of ``utils.partitioned_store``."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._held: OrderedDict[int, _Response] = OrderedDict()  # by text number, the least recently used first
        self._number_of: dict[str, int] = {}  # request id -> text number
        self._index = SuffixIndex()
        self.tokens = 0  # tokens of all responses held

    @property
    def size(self) -> int:
        return self.tokens * TOKEN_BYTES

    def add(self, request_id: str, tokens: Sequence[int]) -> None:
        """Learn a response; it replaces an earlier response of the same request."""
        earlier = self._number_of.get(request_id)
        if earlier is not None:
            self._forget(earlier)
        if len(tokens) < 2:  # a single token has no continuation to copy
            return
        number = next(self._numbers)
        self._held[number] = _Response(request_id, len(tokens))
        self._number_of[request_id] = number
        self._index.extend(number, tuple(tokens), 1, len(tokens))
        self.tokens += len(tokens)

    def find(self, tail: Sequence[int], limit: int) -> list[Occurrence]:
        """As ``SuffixIndex.find``."""
        return self._index.find(tail, limit)

    def used(self, texts: Iterable[int]) -> None:
        """Mark text numbers as recently used: drafts were copied from these responses."""
        for number in texts:
            self._held.move_to_end(number)

    def evict(self) -> None:
        """Drop the least recently used response, whole."""
        self._forget(next(iter(self._held)))

    def __len__(self) -> int:
        return len(self._held)

    def _forget(self, number: int) -> None:
        response = self._held.pop(number)
        del self._number_of[response.request_id]
        self.tokens -= response.length
        self._index.forget(number, response.length)
