"""Caches that keep something beside the rows of another one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outrider.cache.pool import Pool
from outrider.cache.protocol import KVCache


class BesideRows:
    """A ``KVCache`` whose rows are those of ``rows``. Subclasses keep more, slot by slot, and what differs with it."""

    def __init__(self, rows: KVCache) -> None:
        self.rows = rows

    @property
    def max_seq_len(self) -> int:
        return self.rows.max_seq_len

    @property
    def prefix_reuse(self) -> bool:
        return self.rows.prefix_reuse

    @property
    def pool(self) -> Pool:
        return self.rows.pool

    @property
    def attachments(self) -> dict[int, object]:
        return self.rows.attachments

    def publish_prefix(self, slot: int, tokens: Sequence[int], salt: str = "") -> None:
        self.rows.publish_prefix(slot, tokens, salt)

    def held_digests(self) -> list[bytes]:
        return self.rows.held_digests()

    def forget_prefixes(self) -> None:
        self.rows.forget_prefixes()

    def zero(self, slot: int) -> None:
        self.rows.zero(slot)

    def can_allocate(self) -> bool:
        return self.rows.can_allocate()

    def can_extend(self, slot: int, count: int) -> bool:
        return self.rows.can_extend(slot, count)

    def length(self, slot: int) -> int:
        return self.rows.length(slot)

    def extend(self, slot: int, count: int) -> None:
        self.rows.extend(slot, count)

    def write(self, layer: int, slot: int, start: int, k: Any, v: Any) -> None:
        self.rows.write(layer, slot, start, k, v)

    def read(self, layer: int, slot: int, rows: int) -> tuple[Any, Any]:
        return self.rows.read(layer, slot, rows)

    def table(self, slot: int, rows: int) -> list[int]:
        return self.rows.table(slot, rows)

    def free_tokens(self) -> int:
        return self.rows.free_tokens()

    def check(self) -> None:
        self.rows.check()
