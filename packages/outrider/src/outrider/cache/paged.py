"""Keys and values in blocks, taken as a sequence grows and shared between sequences with the same prefix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outrider.cache.blocks import DIGEST_BLOCK, BlockPool, Digest, chain_digests
from outrider.cache.pool import Pool, Rows, RowShape, pool_kind
from outrider.cache.protocol import CacheSpec
from outrider.cache.states import RecurrentStates
from outrider.errors import CapacityError


class PagedCache:
    """One pool of blocks for all sequences; a sequence is a table of block numbers.

        table of slot 0     [ 7 | 2 | 9 ]     rows 0-15 lie in block 7, rows 16-31 in block 2, row 32 on in block 9
        k[layer]            [blocks * block_size, kv_heads, head_dim]

    Blocks of verified tokens are published with a digest of their whole prefix and found again by later sequences; a
    published or shared block is never written to, but copied first.
    """

    states: RecurrentStates | None = None

    def __init__(self, spec: CacheSpec, shape: RowShape) -> None:
        """Raises CapacityError if memory is short."""
        slots, block_size = spec.slots, spec.block_size
        self.max_seq_len, self.block_size = spec.max_seq_len, block_size
        blocks = -(-(slots * spec.max_seq_len if spec.tokens is None else spec.tokens) // block_size)
        self._filler = blocks * block_size  # one more row, never written: what is read beyond a sequence's blocks
        try:
            self.pool: Pool = pool_kind(shape.dtype).make(
                self._filler + 2, shape, block=block_size, filler=self._filler, spare=self._filler + 1
            )
        except (RuntimeError, MemoryError) as error:  # torch reports a failed allocation as RuntimeError
            raise CapacityError(
                f"no memory for {blocks} cache blocks of {block_size} tokens: ask for fewer tokens of cache"
            ) from error
        self._pool = BlockPool(blocks)
        self._slots = slots
        self.prefix_reuse = spec.prefix_reuse
        self._tables: dict[int, list[int]] = {}
        self._lengths: dict[int, int] = {}
        self.attachments: dict[int, object] = {}
        self._published: dict[int, int] = {}  # the number of blocks of each slot that were found or published
        self._rows: dict[int, Rows] = {}  # the pool's row of each position; dropped when the table changes
        self._next = 0

    def allocate(self, tokens: Sequence[int] = (), salt: str = "") -> int:
        """A new slot, holding the longest cached prefix of ``tokens`` (never the last token: its logits are due)."""
        if not self.can_allocate():
            raise CapacityError(f"all {self._slots} cache slots are taken: free one, or make the cache larger")
        slot, self._next = self._next, self._next + 1
        table: list[int] = []
        if self.prefix_reuse:
            for digest in chain_digests(tokens[:-1], self.block_size, salt):
                block = self._pool.find(digest)
                if block is None:
                    break
                table.append(block)
        self._tables[slot] = table
        self._published[slot] = len(table)
        self._lengths[slot] = len(table) * self.block_size
        return slot

    def forget_prefixes(self) -> None:
        self._pool.forget()

    def free(self, slot: int) -> None:
        for block in reversed(self._tables.pop(slot)):  # a prefix stays cached longer than the blocks after it
            self._pool.release(block)
        del self._lengths[slot], self._published[slot]
        self._rows.pop(slot, None)
        self.attachments.pop(slot, None)

    def zero(self, slot: int) -> None:
        own = [block for block in self._tables[slot] if self._pool.is_exclusive(block)]
        self.pool.zero_rows(self.pool.index(self._rows_of(own)))

    def length(self, slot: int) -> int:
        return self._lengths[slot]

    def can_allocate(self) -> bool:
        return len(self._tables) < self._slots

    def can_extend(self, slot: int, count: int) -> bool:
        return self._lengths[slot] + count <= self.max_seq_len and self._missing(slot, count) <= self._pool.available

    def _missing(self, slot: int, count: int) -> int:
        """The number of blocks that ``extend(slot, count)`` takes."""
        start, table = self._lengths[slot], self._tables[slot]
        copied = start % self.block_size > 0 and not self._pool.is_exclusive(table[start // self.block_size])
        return max(0, self._blocks(start + count) - len(table)) + int(copied and count > 0)

    def extend(self, slot: int, count: int) -> None:
        start = self._lengths[slot]
        if start + count > self.max_seq_len:
            raise CapacityError(
                f"a sequence of {start + count} tokens does not fit max_seq_len={self.max_seq_len}: "
                "shorten it, or raise the limit"
            )
        missing = self._missing(slot, count)
        if missing > self._pool.available:
            raise CapacityError(f"{missing} more cache blocks are needed, but only {self._pool.available} are left")
        if missing:
            self._rows.pop(slot, None)
            self._own_last(slot)
            table = self._tables[slot]
            while len(table) < self._blocks(start + count):
                table.append(self._pool.take())
        self._lengths[slot] = start + count

    def publish_prefix(self, slot: int, tokens: Sequence[int], salt: str = "") -> None:
        """Offer the slot's full blocks of verified ``tokens`` (its first rows) for reuse."""
        full = min(len(tokens), self._lengths[slot]) // self.block_size
        if self.prefix_reuse and full > self._published[slot]:
            digests = chain_digests(tokens[: full * self.block_size], self.block_size, salt)
            for block, digest in zip(self._tables[slot], digests, strict=False):
                self._pool.publish(block, digest)
            self._published[slot] = full

    def held_digests(self) -> list[Digest]:
        return self._pool.digests() if self.block_size == DIGEST_BLOCK else []

    def write(self, layer: int, slot: int, start: int, k: Any, v: Any) -> None:
        rows = self._row_index(slot)[start : start + k.shape[0]]
        self.pool.write(layer, rows, k, v)

    def read(self, layer: int, slot: int, rows: int) -> tuple[Any, Any]:
        return self.pool.read(layer, self._row_index(slot, rows)[:rows])

    def table(self, slot: int, rows: int) -> list[int]:
        """The first blocks of the slot's table, filled up with the filler block."""
        wanted, own = self._blocks(rows), self._tables[slot]
        return own[:wanted] + [self._filler // self.block_size] * (wanted - len(own))

    def truncate_to(self, slot: int, length: int) -> None:
        """Keep the first ``length`` rows and free the blocks from ceil(length / block_size) on."""
        if not 0 <= length <= self._lengths[slot]:
            raise ValueError(f"cannot truncate {self._lengths[slot]} rows to {length}")
        table, keep = self._tables[slot], self._blocks(length)
        if keep < len(table):
            self._rows.pop(slot, None)
            while len(table) > keep:
                self._pool.release(table.pop())
            self._published[slot] = min(self._published[slot], keep)
        self._lengths[slot] = length

    def keep_path(self, slot: int, base: int, path: Sequence[int]) -> None:
        """Compact an accepted tree path (see ``ContiguousCache.keep_path``), and free the blocks behind it."""
        if any(source != target for target, source in enumerate(path)):
            targets = [self._row(slot, base + target) for target in range(len(path))]
            sources = [self._row(slot, base + node) for node in path]
            self.pool.copy_rows(self.pool.index(targets), self.pool.index(sources))
        self.truncate_to(slot, base + len(path))

    def free_tokens(self) -> int:
        return self._pool.available * self.block_size

    def check(self) -> None:
        self._pool.check()
        held: dict[int, int] = {}
        for slot, table in self._tables.items():
            if len(table) != self._blocks(self._lengths[slot]):
                raise AssertionError(f"slot {slot} holds {len(table)} blocks for {self._lengths[slot]} rows")
            for block in table:
                held[block] = held.get(block, 0) + 1
        self._pool.check_users(held)

    def _blocks(self, rows: int) -> int:
        return -(-rows // self.block_size)

    def _own_last(self, slot: int) -> None:
        """Copy the partly filled last block if it is shared or published: copy on write."""
        at, within = divmod(self._lengths[slot], self.block_size)
        table = self._tables[slot]
        if within and not self._pool.is_exclusive(table[at]):
            old, new = table[at], self._pool.take()
            first, source = new * self.block_size, old * self.block_size
            self.pool.copy_rows(slice(first, first + within), slice(source, source + within))
            self._pool.release(old)
            table[at] = new
            self._published[slot] = min(self._published[slot], at)

    def _row(self, slot: int, position: int) -> int:
        """The row of the pool that holds a position."""
        return self._tables[slot][position // self.block_size] * self.block_size + position % self.block_size

    def _rows_of(self, blocks: Sequence[int]) -> list[int]:
        """The pool's rows of ``blocks``, one block after another."""
        return [block * self.block_size + i for block in blocks for i in range(self.block_size)]

    def _row_index(self, slot: int, least: int = 0) -> Rows:
        """The pool's row of each of ``least`` or more positions; the filler row beyond the slot's blocks."""
        index = self._rows.get(slot)
        if index is None or len(index) < least:
            rows = self._rows_of(self._tables[slot])
            rows += [self._filler] * (least - len(rows))
            index = self._rows[slot] = self.pool.index(rows)
        return index
