"""A cache of keys and values with recurrent states: prefixes are reused where a copy of the state exists."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from outrider.cache.beside import BesideRows
from outrider.cache.checkpoints import BOUNDARY, Checkpoint, Checkpoints
from outrider.cache.protocol import KVCache
from outrider.cache.rows import row_numbers
from outrider.cache.states import RecurrentStates


class HybridCache(BesideRows):
    """Rows of the attention layers, and states of the recurrent ones, slot by slot.

    States need no ``zero``: a pass clears the state of a sequence without rows.
    """

    def __init__(self, rows: KVCache, states: RecurrentStates, checkpoints: Checkpoints, block: int) -> None:
        """``block``: rows that ``rows`` shares together."""
        super().__init__(rows)
        self.states, self.checkpoints, self._block = states, checkpoints, block
        self._slots: set[int] = set()
        self._branches: dict[int, list[int]] = {}  # by slot
        self._next_branch = -1

    def allocate(self, tokens: Sequence[int] = (), salt: str = "") -> int:
        """As ``KVCache.allocate``; the prefix ends where a copy of the state exists."""
        slot = self.rows.allocate(tokens, salt)
        self.states.open(slot)
        self._slots.add(slot)
        found = self.checkpoints.find(tokens, salt, self.rows.length(slot))
        if not any(self._restore(slot, length, checkpoint) for length, checkpoint in found):
            self.rows.truncate_to(slot, 0)
        self.checkpoints.keep_roots(found)
        return slot

    def _restore(self, slot: int, length: int, checkpoint: Checkpoint) -> bool:
        """Make a slot hold ``length`` rows of a copy; returns whether there was room for them."""
        held = self.rows.length(slot)
        if length > held:
            if not self.rows.can_extend(slot, length - held):
                return False
            self.rows.extend(slot, length - held)
            targets, first = row_numbers(self, slot, held, length), held - checkpoint.first
            self.pool.write_rows(targets, [part[first : first + length - held] for part in checkpoint.rows])
        self.rows.truncate_to(slot, length)
        self.checkpoints.load(checkpoint, self.states, slot, length)
        return True

    def save_state(self, slot: int, tokens: Sequence[int], salt: str = "", worth: int = BOUNDARY) -> None:
        """Copy the slot's state, whose rows hold these verified ``tokens``, for later sequences.

        ``worth``: as in ``Checkpoint``.
        """
        first = self.states.settled(slot) // self._block * self._block
        rows = self.pool.read_rows(row_numbers(self, slot, first, len(tokens)))
        self.checkpoints.save(self.states, slot, tokens, salt, first, rows, worth)

    def can_branch(self, count: int) -> bool:
        """Whether ``branch`` would find the states."""
        return sum(map(len, self._branches.values())) + count <= self.states.branches

    def branch(self, slot: int, count: int) -> None:
        """Give a slot ``count`` states besides its own, for rows that go on in several ways (``Span.branch``)."""
        held = self._branches[slot] = [self._next_branch - i for i in range(count)]
        self._next_branch -= count
        for branch in held:
            self.states.open(branch)

    def branches(self, slot: int) -> Sequence[int]:
        """The branches of a slot, all below 0."""
        return self._branches.get(slot, ())

    def forget_prefixes(self) -> None:
        super().forget_prefixes()
        self.checkpoints.forget()

    def free(self, slot: int) -> None:
        self.rows.free(slot)
        for held in (slot, *self._branches.pop(slot, ())):
            self.states.close(held)
        self._slots.remove(slot)

    def truncate_to(self, slot: int, length: int) -> None:
        """As ``KVCache.truncate_to``. Raises ValueError if the state holds more rows, unless ``length`` is 0."""
        self.states.truncate_to(slot, length)
        self.rows.truncate_to(slot, length)

    def keep_path(self, slot: int, base: int, path: Sequence[int]) -> None:
        """As ``KVCache.keep_path``. States of a slot with branches stay: who made the branches follows the rows."""
        if slot not in self._branches:
            self.states.keep_path(slot, base, path)
        self.rows.keep_path(slot, base, path)

    def check(self) -> None:
        super().check()
        self.checkpoints.check()
        self.states.check_places([*self._slots, *chain.from_iterable(self._branches.values())])
        for slot in self._slots - set(self._branches):  # branches hold rows that the slot's own state does not
            self.states.check(slot, self.rows.length(slot))
