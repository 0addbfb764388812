"""Sequences that begin as a saved one did: their rows come from a folder, not from the model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.cache.blocks import Digest
from outrider.cache.hybrid import HybridCache
from outrider.cache.protocol import KVCache
from outrider.cache.rows import row_numbers
from outrider.cache.sessions import SessionStore
from outrider.cache.sessions.segments import SEGMENT, chain

__all__ = ["Sessions"]

_EXPONENT = np.uint16(0x7F80)  # of a bfloat16 that is not finite


class Sessions:
    """Moves rows and recurrent states between a cache and a ``SessionStore``."""

    def __init__(self, store: SessionStore, cache: KVCache) -> None:
        self.store, self._cache = store, cache
        self._rows = [(array.shape[1:], array.dtype) for array in cache.pool.arrays]
        self._hybrid = cache if isinstance(cache, HybridCache) else None
        self._parents: dict[int, list[Digest]] = {}  # by slot: those of its full segments that were saved, and the next

    def restore(self, slot: int, tokens: Sequence[int], salt: str) -> None:
        """Give a new sequence more rows than the cache found of it, if they were saved.

        Never the row of the last token, whose logits are due.
        """
        held, limit = self._cache.length(slot), len(tokens) - 1
        _, known = self.store.find(tokens[:limit], salt)
        if self._hybrid is None:
            if known > held:
                self._read_rows(slot, tokens, salt, held, known)
            return
        for state in self.store.states(tokens, salt, known):
            if state.end <= held:
                return
            if self._read_rows(slot, tokens, salt, held, state.end) == state.end:
                arrays = self.store.read(state, self._hybrid.states.state_shapes)
                if arrays is not None:
                    self._hybrid.states.load_state(slot, arrays, state.end)
                    return
            self._hybrid.rows.truncate_to(slot, held)

    def _read_rows(self, slot: int, tokens: Sequence[int], salt: str, held: int, end: int) -> int:
        """Fill rows ``held`` to ``end``, as far as their files are whole and there is room; the rows there are then."""
        at = held
        for segment in self.store.find(tokens[:end], salt)[0]:
            last = min(segment.end, end)
            if last <= at:
                continue
            if not self._cache.can_extend(slot, last - at):
                break
            parts = self.store.read(segment, [((len(segment.tokens), *shape), dtype) for shape, dtype in self._rows])
            if parts is None:
                break
            self._cache.extend(slot, last - at)
            rows = row_numbers(self._cache, slot, at, last)
            first = at - segment.start
            self._cache.pool.write_rows(rows, [part[first : first + last - at] for part in parts])
            at = last
        return at

    def save(self, slot: int, tokens: Sequence[int], salt: str, *, ended: bool) -> None:
        """Keep the rows of a sequence, which hold these verified ``tokens``; ``ended``: those of the last segment too.

        Full segments are kept while a prompt is read: so they are written as fast as they come, however many.
        """
        parents = self._parents.setdefault(slot, chain((), salt))
        for start in range(SEGMENT * (len(parents) - 1), len(tokens), SEGMENT):
            own = tokens[start : start + SEGMENT]
            if len(own) == SEGMENT or ended:
                parents.append(self.store.save(start, own, parents[-1], partial(self._copy, slot)))
        if ended:
            self.forget(slot)

    def forget(self, slot: int) -> None:
        """Another sequence will have the slot."""
        self._parents.pop(slot, None)

    def _copy(self, slot: int, start: int, end: int) -> tuple[Any, ...] | None:
        """A copy of rows; None if numbers among them are not finite."""
        parts = self._cache.pool.read_rows(row_numbers(self._cache, slot, start, end))
        return parts if all(map(_is_finite, parts)) else None

    def save_state(self, slot: int, tokens: Sequence[int], salt: str) -> None:
        """Keep the recurrent state of a sequence, of the first rows of these verified ``tokens``."""
        assert self._hybrid is not None
        states = self._hybrid.states
        if states.settled(slot) and states.is_finite(states.row(slot), 0):
            self.store.save_state(tokens[: states.settled(slot)], salt, lambda: states.state_of(slot))


def _is_finite(numbers: NDArray[Any]) -> bool:
    """Whether all are finite: bfloat16 is held as 16 bits, and 8-bit codes always are."""
    if numbers.dtype == np.uint16:
        return not bool(((numbers & _EXPONENT) == _EXPONENT).any())
    return numbers.dtype == np.int8 or bool(np.isfinite(numbers).all())
