"""Copies of recurrent states at lengths of prefixes, for sequences that begin alike."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from outrider.cache.blocks import Digest, prefix_digests
from outrider.cache.states import RecurrentStates

WITHIN, BOUNDARY, ROOT = range(3)
"""The worth of a copy: within a message; at a message's end, or found once; at the end of a conversation's first."""

Key = tuple[int, Digest]
"""The settled length of a copy, and the digest of its tokens and salt."""


@dataclass(frozen=True)
class Checkpoint:
    """A state of ``length`` rows, with the entries of rows after them.

    ::

        tokens      0 ........ first | first .. length-1 | length ... length + len(tail) - 1
        state       holds all of these                   | entries
        rows                         | keys and values, as the cache shares whole blocks alone
    """

    place: int  # in the arrays of copies
    length: int
    tail: tuple[int, ...]
    first: int
    rows: tuple[Any, ...]  # arrays [length + len(tail) - first, ...], one for each of the pool's arrays
    worth: int = BOUNDARY


class Checkpoints:
    """At most ``places`` copies of states; of those of the least worth, the least recently used one makes room.

    An agent goes on from its last message, and begins anew behind its system prompt when it compacts its messages: so
    the copy there stays while its conversation is used. Such copies take at most half of the places.

    A copy is found by the digest of its tokens and salt, so its bits are those of any sequence with these tokens.
    """

    def __init__(self, copies: RecurrentStates) -> None:
        """``copies``: states for copies alone, of the kind of those that are copied."""
        self._copies, places = copies, copies.places
        self._free = list(range(places - 1, -1, -1))
        self._held: OrderedDict[Key, Checkpoint] = OrderedDict()  # least recently used first

    def __len__(self) -> int:
        return len(self._held)

    def save(
        self,
        states: RecurrentStates,
        slot: int,
        tokens: Sequence[int],
        salt: str,
        first: int,
        rows: tuple[Any, ...],
        worth: int = BOUNDARY,
    ) -> bool:
        """Copy the state of a slot, whose rows hold ``tokens``. Returns whether a copy is held now.

        A state with numbers that are not finite is not copied. ``first``, ``rows``, ``worth``: as in ``Checkpoint``.
        """
        length, row = states.settled(slot), states.row(slot)
        tail = tuple(tokens[length:])
        if self._copies.places == 0 or length == 0:
            return False
        key = (length, prefix_digests(tokens, [length], salt)[0])
        held = self._held.get(key)
        if held is not None and len(held.tail) >= len(tail):
            self._touch(key, worth)
            return True
        worth = worth if held is None else max(worth, held.worth)
        if not states.is_finite(row, len(tail)):
            return False
        place = self._place(key)
        self._copies.copy(place, states, row, len(tail))
        self._held[key] = Checkpoint(place, length, tail, first, rows, worth)
        return True

    def _place(self, key: Key) -> int:
        """A place for a copy: that of the copy with this key, a free one, or that of the one with the least worth."""
        if key in self._held:
            return self._held.pop(key).place
        return self._free.pop() if self._free else self._held.pop(self._least()).place

    def _least(self) -> Key:
        """The least recently used of the copies of the least worth; roots beyond half of the places count less."""
        roots = [key for key, held in self._held.items() if held.worth == ROOT]
        surplus = set(roots[: max(0, len(roots) - self._copies.places // 2)])
        return min(self._held, key=lambda key: BOUNDARY if key in surplus else self._held[key].worth)

    def _touch(self, key: Key, worth: int) -> None:
        """Note that a copy was used."""
        held = self._held[key]
        self._held[key] = replace(held, worth=max(worth, held.worth))
        self._held.move_to_end(key)

    def find(self, tokens: Sequence[int], salt: str, rows: int) -> list[tuple[int, Checkpoint]]:
        """Copies for a sequence of ``tokens``, and the lengths to which they serve it, longest first.

        Never the last token, whose logits are due. ``rows``: the sequence's rows in the cache; a copy that would need
        more rows than these and its own is left out.
        """
        limit = len(tokens) - 1
        lengths = sorted({each.length for each in self._held.values() if each.length <= limit and each.first <= rows})
        found: list[tuple[int, Checkpoint]] = []
        for key in zip(lengths, prefix_digests(tokens, lengths, salt), strict=True):
            held = self._held.get(key)
            if held is not None and held.first <= rows:
                found.append((held.length + _common(held.tail, tokens[held.length : limit]), held))
        return sorted(found, key=lambda each: each[0], reverse=True)

    def usable(self, tokens: Sequence[int], salt: str, rows: int) -> int:
        """The most of a sequence's ``rows`` that can be used: up to a length for which ``find`` finds a copy."""
        return min(rows, next((length for length, _ in self.find(tokens, salt, rows)), 0))

    def load(self, checkpoint: Checkpoint, states: RecurrentStates, slot: int, length: int) -> None:
        """Give a slot the state of a copy that ``find`` found for ``length`` rows."""
        states.copy(states.row(slot), self._copies, checkpoint.place, length - checkpoint.length)
        states.assume(slot, checkpoint.length)
        self._touch(next(key for key, held in self._held.items() if held.place == checkpoint.place), BOUNDARY)

    def keep_roots(self, found: Sequence[tuple[int, Checkpoint]]) -> None:
        """Note that a conversation goes on, of whose beginnings ``find`` found these copies."""
        roots = {each.place for _, each in found if each.worth == ROOT}
        for key in [key for key, held in self._held.items() if held.place in roots]:
            self._held.move_to_end(key)

    def forget(self) -> None:
        """Free all places."""
        self._free += [held.place for held in self._held.values()]
        self._held.clear()

    def check(self) -> None:
        """Raise AssertionError unless free + held == total."""
        free, held, total = len(self._free), len(self._held), self._copies.places
        places = {each.place for each in self._held.values()}
        if free + held != total or len(places) != held or places & set(self._free):
            raise AssertionError(f"copies of states are not conserved: {free} free + {held} held != {total} in total")


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """The length of the longest common prefix."""
    n = min(len(a), len(b))
    return next((i for i in range(n) if a[i] != b[i]), n)
