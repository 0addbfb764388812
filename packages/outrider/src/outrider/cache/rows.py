"""Where a sequence's rows lie in its cache's pool."""

from __future__ import annotations

import numpy as np

from outrider.cache.pool import Rows
from outrider.cache.protocol import KVCache

__all__ = ["as_slice", "row_numbers"]


def row_numbers(cache: KVCache, slot: int, start: int, end: int) -> Rows:
    """The pool's rows of positions ``start`` to ``end``."""
    block, table = cache.pool.block, cache.table(slot, end)
    return cache.pool.index([table[at // block] * block + at % block for at in range(start, end)])


def as_slice(rows: Rows) -> Rows:
    """Rows that follow one another as a slice, which is copied at once."""
    if not isinstance(rows, slice) and len(rows) and bool((np.diff(rows) == 1).all()):
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return rows
