"""Where a sequence's rows lie in its cache's pool."""

from __future__ import annotations

from outrider.cache.pool import Rows
from outrider.cache.protocol import KVCache

__all__ = ["row_numbers"]


def row_numbers(cache: KVCache, slot: int, start: int, end: int) -> Rows:
    """The pool's rows of positions ``start`` to ``end``."""
    block, table = cache.pool.block, cache.table(slot, end)
    return cache.pool.index([table[at // block] * block + at % block for at in range(start, end)])
