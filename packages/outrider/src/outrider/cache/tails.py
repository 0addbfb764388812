"""Rows of partly filled blocks, which a paged cache does not share."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from outrider.cache.blocks import Digest, prefix_digests
from outrider.cache.protocol import KVCache
from outrider.cache.rows import row_numbers

MOST_TAILS = 64


class PrefixTails:
    """Copies of the last rows of ended sequences; the least recently used one makes room.

    ::

        block of 4     [ a b c d ][ e f g h ][ i j . . ]
        shared           whole blocks           a copy, found by the tokens a to h
    """

    def __init__(self, cache: KVCache, most: int = MOST_TAILS) -> None:
        self._cache, self._most = cache, most
        self._held: OrderedDict[Digest, tuple[Sequence[int], tuple[Any, ...]]] = OrderedDict()

    def save(self, slot: int, tokens: Sequence[int], salt: str) -> None:
        """Copy the last rows of a slot, whose rows hold ``tokens``."""
        whole = len(tokens) // self._cache.pool.block * self._cache.pool.block
        if whole == len(tokens):
            return
        key = prefix_digests(tokens, [whole], salt)[0]
        self._held.pop(key, None)
        while len(self._held) >= self._most:
            self._held.popitem(last=False)
        self._held[key] = tokens[whole:], self._cache.pool.read_rows(row_numbers(self._cache, slot, whole, len(tokens)))

    def restore(self, slot: int, tokens: Sequence[int], salt: str) -> None:
        """Add rows to those that ``allocate`` found for ``tokens``."""
        start = self._cache.length(slot)
        key = prefix_digests(tokens, [start], salt)[0]
        held, rows = self._held.get(key, ((), ()))
        limit = min(len(held), len(tokens) - start)
        count = next((i for i in range(limit) if held[i] != tokens[start + i]), limit)
        if count and self._cache.can_extend(slot, count):
            self._cache.extend(slot, count)
            targets = row_numbers(self._cache, slot, start, start + count)
            self._cache.pool.write_rows(targets, [part[:count] for part in rows])
            self._held.move_to_end(key)
