"""Compares the bytes that stores of many domains count with those that Python takes."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import TypeVar

from outrider.utils.partitioned_store import PartitionedStore, Store

S = TypeVar("S", bound=Store)


def counted_over_taken(make: Callable[[], S], fill: Callable[[S, int], None], domains: int, tokens: int) -> float:
    """Counted over taken bytes, of stores that ``fill`` has each taught ``tokens`` tokens."""
    kept = PartitionedStore(make, 1 << 30)
    tracemalloc.start()
    for i in range(domains):
        lease = kept.open(f"domain {i}", "t")
        fill(lease.store, tokens)
        kept.close(lease)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return kept.size / taken
