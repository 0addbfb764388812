"""Sequences that begin as a saved one did: their rows come from a folder, not from the model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from outrider.cache.blocks import Digest
from outrider.cache.hybrid import HybridCache
from outrider.cache.protocol import KVCache
from outrider.cache.rows import as_slice, row_numbers
from outrider.cache.sessions.arrivals import Arrival, ArrivalReader
from outrider.cache.sessions.segments import SEGMENT, Segment, chain
from outrider.cache.sessions.store import SessionStore

__all__ = ["Sessions"]

STEP_BYTES = 32 << 20
"""Rows that one step copies for files, in bytes: some hundredths of a second."""


class Sessions:
    """Moves rows and recurrent states between a cache and a ``SessionStore``."""

    def __init__(self, store: SessionStore, cache: KVCache) -> None:
        self.store, self._cache = store, cache
        rows = [(array.shape[1:], array.dtype) for array in cache.pool.arrays]
        self._hybrid = cache if isinstance(cache, HybridCache) else None
        states = [] if self._hybrid is None else self._hybrid.states.state_shapes
        self._reader = ArrivalReader(store, cache, rows, states)
        self._arrivals: dict[int, tuple[Arrival, Sequence[int], str]] = {}  # by slot, with their tokens and salt
        self._parents: dict[int, list[Digest]] = {}  # by slot: those of its full segments that were saved, and the next
        self._behind: set[int] = set()  # slots with full segments that are not saved yet
        self._bytes_left = STEP_BYTES

    # -- restoring -------------------------------------------------------------------------------------------------

    def begin(self, slot: int, tokens: Sequence[int], salt: str) -> bool:
        """Let a thread fill a new sequence's slot with more rows than the cache found, if they were saved.

        Never the row of the last token, whose logits are due. Returns whether rows will come: until ``ended`` names the
        slot, they are the thread's, and the slot's length counts them.
        """
        arrival = self._plan(slot, tokens, salt)
        if arrival is None:
            return False
        self._cache_rows().extend(slot, arrival.end - arrival.held)
        if self._hybrid is not None:
            self._hybrid.states.assume(slot, arrival.end)
        self._arrivals[slot] = arrival, tokens, salt
        self._parents[slot] = chain(tokens[: arrival.end], salt)
        self._reader.begin(arrival)
        return True

    def _plan(self, slot: int, tokens: Sequence[int], salt: str) -> Arrival | None:
        """The rows to read, as many as are saved and as there is room for."""
        held, limit = self._cache.length(slot), len(tokens) - 1
        found, known = self.store.find(tokens[:limit], salt)
        if self._hybrid is None:
            ends: list[tuple[int, Segment | None]] = [(min(each.end, known), None) for each in reversed(found)]
        else:
            ends = [(state.end, state) for state in self.store.states(tokens, salt, known)]
        for end, state in ends:
            if end <= held:
                return None
            if self._cache.can_extend(slot, end - held):
                return Arrival(slot, held, end, [each for each in found if each.end > held and each.start < end], state)
        return None

    def ended(self) -> list[int]:
        """The slots whose rows have come since the last call, or will not."""
        self._reader.clear()
        return [slot for slot, (arrival, *_) in list(self._arrivals.items()) if arrival.is_done and self._end(slot)]

    def _end(self, slot: int) -> bool:
        """Keep the rows that have come; returns False if the thread reads others, because files were damaged."""
        arrival, tokens, salt = self._arrivals.pop(slot)
        del self._parents[slot][1 + arrival.at // SEGMENT :]
        if self._hybrid is None:
            self._cache.truncate_to(slot, arrival.at)
            return True
        if arrival.is_whole:
            assert arrival.arrays is not None
            self._hybrid.states.load_state(slot, arrival.arrays, arrival.end)
            return True
        self._take_back(arrival)
        return not self.begin(slot, tokens, salt)

    def _take_back(self, arrival: Arrival) -> None:
        """Drop the room for rows, and those that have come."""
        self._cache_rows().truncate_to(arrival.slot, arrival.held)
        if self._hybrid is not None:
            self._hybrid.states.assume(arrival.slot, arrival.held)

    def _cache_rows(self) -> KVCache:
        return self._cache if self._hybrid is None else self._hybrid.rows

    def wait(self, seconds: float) -> None:
        """Wait until some rows have come, if any are on their way."""
        if self._arrivals:
            self._reader.wait(seconds)

    # -- saving ----------------------------------------------------------------------------------------------------

    def begin_step(self) -> None:
        """A step may copy ``STEP_BYTES`` again."""
        self._bytes_left = STEP_BYTES

    def is_behind(self, slot: int) -> bool:
        """Whether ``save`` left full segments to later steps."""
        return slot in self._behind

    def save(self, slot: int, tokens: Sequence[int], salt: str, *, ended: bool) -> None:
        """Keep the rows of a sequence, which hold these verified ``tokens``; ``ended``: those of the last segment too.

        Full segments are kept while a prompt is read: so they are written as fast as they come, however many. What
        is more than a step may copy, or than waits to be written, is left to later steps.
        """
        parents = self._parents.setdefault(slot, chain((), salt))
        self._behind.discard(slot)
        for start in range(SEGMENT * (len(parents) - 1), len(tokens), SEGMENT):
            own = tokens[start : start + SEGMENT]
            if len(own) == SEGMENT or ended:
                digest = self.store.save(start, own, parents[-1], partial(self._copy, slot), salt, self._bytes_left > 0)
                if digest is None:
                    self._behind.add(slot)
                    break
                parents.append(digest)
        if ended:
            self.forget(slot)

    def forget(self, slot: int) -> None:
        """Another sequence will have the slot."""
        self._parents.pop(slot, None)
        self._behind.discard(slot)
        if slot in self._arrivals:
            arrival, *_ = self._arrivals.pop(slot)
            arrival.cancel()

    def _copy(self, slot: int, start: int, end: int) -> tuple[Any, ...]:
        """A copy of rows."""
        parts = self._cache.pool.read_rows(as_slice(row_numbers(self._cache, slot, start, end)))
        self._bytes_left -= sum(part.nbytes for part in parts)
        return parts

    def save_state(self, slot: int, tokens: Sequence[int], salt: str) -> None:
        """Keep the recurrent state of a sequence, of the first rows of these verified ``tokens``."""
        assert self._hybrid is not None
        states = self._hybrid.states
        if states.settled(slot) and states.is_finite(states.row(slot), 0):
            self.store.save_state(tokens[: states.settled(slot)], salt, lambda: states.state_of(slot))
