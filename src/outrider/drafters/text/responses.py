"""Earlier responses of an engine, as a source of drafts for later ones: bounded, and separated by cache salt."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from outrider.drafters.text.suffix_index import Occurrence, SuffixIndex

CAPACITY = 1 << 16  # tokens, about 200 bytes each


@dataclass(frozen=True)
class _Response:
    salt: str
    request_id: str
    length: int


class Responses:
    """The most recently used responses of all requests; whole ones are forgotten where there are too many tokens.

    A search sees only responses with the same salt.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._numbers = itertools.count()
        self._held: OrderedDict[int, _Response] = OrderedDict()  # by text number, the least recently used first
        self._number_of: dict[tuple[str, str], int] = {}  # (salt, request id) -> text number
        self._indexes: dict[str, SuffixIndex] = {}  # by salt
        self.size = 0  # tokens held

    def add(self, salt: str, request_id: str, tokens: Sequence[int]) -> None:
        """Learn a response, in place of an earlier one of the same request."""
        earlier = self._number_of.get((salt, request_id))
        if earlier is not None:
            self._forget(earlier)
        if not 2 <= len(tokens) <= self._capacity:  # one token has no continuation
            return
        number = next(self._numbers)
        self._held[number] = _Response(salt, request_id, len(tokens))
        self._number_of[salt, request_id] = number
        self._indexes.setdefault(salt, SuffixIndex()).extend(number, tuple(tokens), 1, len(tokens))
        self.size += len(tokens)
        while self.size > self._capacity:
            self._forget(next(iter(self._held)))

    def find(self, salt: str, tail: Sequence[int], limit: int) -> list[Occurrence]:
        """As ``SuffixIndex.find``, among the responses of one salt."""
        index = self._indexes.get(salt)
        return index.find(tail, limit) if index is not None else []

    def used(self, texts: Iterable[int]) -> None:
        """Keep these for longer: drafts were copied from them."""
        for number in texts:
            self._held.move_to_end(number)

    def __len__(self) -> int:
        return len(self._held)

    def _forget(self, number: int) -> None:
        response = self._held.pop(number)
        del self._number_of[response.salt, response.request_id]
        self.size -= response.length
        index = self._indexes[response.salt]
        index.forget(number, response.length)
        if not len(index):
            del self._indexes[response.salt]
