"""Keys and values in one range of memory per sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from outrider.cache.blocks import DIGEST_BLOCK, Digest, chain_digests
from outrider.cache.pool import Pool, RowShape, pool_kind
from outrider.cache.protocol import CacheSpec
from outrider.cache.states import RecurrentStates
from outrider.errors import CapacityError

ROW_BLOCK = 512
"""Rows per block. A slot has whole blocks: attention reads whole blocks of keys, past a sequence's end."""


_LOST_TO_AN_EMPTY_SLOT, _LOST_TO_ANOTHER = 0.1, 0.5
"""Share of a slot's rows that a sequence may overwrite, rather than have its prefix copied to an empty slot, or to one
whose sequence is then lost."""


def _all_rows(tokens: Sequence[int], salt: str, rows: int) -> int:
    return rows


class ContiguousCache:
    """A fixed number of slots, each with room for ``max_seq_len`` rows.

        rows of the pool: [ slot 0: valid rows, stale or zero rows | slot 1 | ... ]

    Rolling back only lowers a length: stale rows stay, are masked, and are overwritten by the next forward pass.
    Memory starts as zeros, so that unwritten rows are finite, and untouched pages take no memory.
    """

    states: RecurrentStates | None = None

    def __init__(
        self, spec: CacheSpec, shape: RowShape, usable: Callable[[Sequence[int], str, int], int] = _all_rows
    ) -> None:
        """``usable``: of the rows that a sequence of some tokens and salt shares with a slot, those that serve it.

        Raises CapacityError if memory is short.
        """
        slots, self.max_seq_len = spec.slots, spec.max_seq_len
        rows = -(-spec.max_seq_len // ROW_BLOCK) * ROW_BLOCK
        last = slots * rows - 1  # behind it comes a spare row
        try:
            self.pool: Pool = pool_kind(shape.dtype).make(last + 2, shape, block=ROW_BLOCK, filler=last, spare=last + 1)
        except (RuntimeError, MemoryError) as error:  # torch reports a failed allocation as RuntimeError
            raise CapacityError(
                f"no memory for a cache of {slots} sequences of {spec.max_seq_len} tokens: use a smaller max_seq_len"
            ) from error
        self._blocks = rows // ROW_BLOCK  # blocks of a slot
        self._slots = slots
        self.prefix_reuse, self._usable = spec.prefix_reuse, usable
        self._free = list(range(slots))  # longest unused first
        self._lengths: dict[int, int] = {}
        self.attachments: dict[int, object] = {}
        self._verified: dict[int, tuple[str, list[int]]] = {}  # salt and tokens of the verified rows in a slot

    def can_allocate(self) -> bool:
        return bool(self._free)

    def allocate(self, tokens: Sequence[int] = (), salt: str = "") -> int:
        """Take a free slot, with the rows of the longest prefix of ``tokens`` that any slot holds.

        They stay where they are if the slot is free and held little else. Otherwise they are copied, so that another
        sequence that begins alike goes on with its own.
        """
        if not self._free:
            raise CapacityError(f"all {self._slots} cache slots are taken: free one, or make the cache larger")
        known = {slot: self._common(slot, tokens, salt) for slot in (*self._free, *self._lengths)}
        best = max(known, key=known.__getitem__)  # ``max`` returns the first of equals: a free one
        slot = best if self._is_taken_over(best, known[best]) else self._least_useful(best if known[best] else None)
        self._free.remove(slot)
        self._verified.pop(slot, None)
        self._lengths[slot] = known[best]
        if slot != best and known[best]:
            self.pool.copy_rows(self._rows(slot, 0, known[best]), self._rows(best, 0, known[best]))
        return slot

    def _is_taken_over(self, slot: int, common: int) -> bool:
        """Whether a sequence takes the slot with its prefix, and what else that holds is lost."""
        if slot not in self._free or common == 0:
            return False
        if len(self._free) == 1:
            return True
        held = len(self._verified[slot][1])
        is_any_empty = any(other not in self._verified for other in self._free)
        return held - common <= held * (_LOST_TO_AN_EMPTY_SLOT if is_any_empty else _LOST_TO_ANOTHER)

    def _least_useful(self, but: int | None) -> int:
        """An empty slot, else the least recently used one; without prefix reuse, the most recently used one.

        Not ``but``, unless there is no other.
        """
        if not self.prefix_reuse:
            return self._free[-1]
        others = [slot for slot in self._free if slot != but] or self._free
        return next((slot for slot in others if slot not in self._verified), others[0])

    def _common(self, slot: int, tokens: Sequence[int], salt: str) -> int:
        """The number of a slot's verified rows that a sequence of ``tokens`` can use."""
        owner, held = self._verified.get(slot, ("", []))
        if owner != salt:
            return 0
        limit = min(len(held), len(tokens) - 1)
        common = next((i for i in range(limit) if held[i] != tokens[i]), max(limit, 0))
        return self._usable(tokens, salt, common)

    def publish_prefix(self, slot: int, tokens: Sequence[int], salt: str = "") -> None:
        if self.prefix_reuse:
            self._verified[slot] = (salt, list(tokens))

    def held_digests(self) -> list[Digest]:
        held = dict(self._verified)  # a copy in one operation: other threads may call this
        return [digest for salt, tokens in held.values() for digest in chain_digests(tokens, DIGEST_BLOCK, salt)]

    def forget_prefixes(self) -> None:
        self._verified.clear()

    def free(self, slot: int) -> None:
        del self._lengths[slot]
        self.attachments.pop(slot, None)
        self._free.append(slot)

    def zero(self, slot: int) -> None:
        """Zero a slot with possible NaN rows: a masked NaN would spread to a later sequence."""
        self._verified.pop(slot, None)
        self.pool.zero_rows(self._rows(slot))

    def length(self, slot: int) -> int:
        return self._lengths[slot]

    def can_extend(self, slot: int, count: int) -> bool:
        return self._lengths[slot] + count <= self.max_seq_len

    def extend(self, slot: int, count: int) -> None:
        length = self._lengths[slot] + count
        if length > self.max_seq_len:
            raise CapacityError(
                f"a sequence of {length} tokens does not fit max_seq_len={self.max_seq_len}: "
                "shorten it, or raise the limit"
            )
        self._lengths[slot] = length

    def write(self, layer: int, slot: int, start: int, k: Any, v: Any) -> None:
        self.pool.write(layer, self._rows(slot, start, start + k.shape[0]), k, v)

    def read(self, layer: int, slot: int, rows: int) -> tuple[Any, Any]:
        return self.pool.read(layer, self._rows(slot, 0, rows))

    def _rows(self, slot: int, start: int = 0, end: int | None = None) -> slice:
        """The pool's rows for rows ``start`` to ``end`` (None: the last) of a slot."""
        size = self._blocks * ROW_BLOCK
        return slice(slot * size + start, slot * size + (size if end is None else min(end, size)))

    def table(self, slot: int, rows: int) -> list[int]:
        """The pool's blocks for the first ``rows`` rows: a slot's blocks follow one another."""
        first = slot * self._blocks
        return list(range(first, first + -(-rows // ROW_BLOCK)))

    def truncate_to(self, slot: int, length: int) -> None:
        """Keep the first ``length`` rows: ``[a b c d] -> truncate_to(2) -> [a b]``."""
        if not 0 <= length <= self._lengths[slot]:
            raise ValueError(f"cannot truncate {self._lengths[slot]} rows to {length}")
        self._lengths[slot] = length
        if slot in self._verified and len(self._verified[slot][1]) > length:
            salt, tokens = self._verified[slot]
            self._verified[slot] = salt, tokens[:length]

    def keep_path(self, slot: int, base: int, path: Sequence[int]) -> None:
        """Compact an accepted tree path and drop the rest.

        ::

            rows     a b | w x y z      base = 2, path = (0, 2)
            after    a b   w y
        """
        if any(source != target for target, source in enumerate(path)):
            first = self._rows(slot, base).start
            sources = self.pool.index([first + node for node in path])
            self.pool.copy_rows(slice(first, first + len(path)), sources)
        self.truncate_to(slot, base + len(path))

    def free_tokens(self) -> int:
        used = sum(self._lengths.values())
        return self._slots * self.max_seq_len - used

    def check(self) -> None:
        free, used, total = len(self._free), len(self._lengths), self._slots
        if free + used != total or set(self._free) & set(self._lengths):
            raise AssertionError(f"cache slots are not conserved: {free} free + {used} used != {total} in total")
