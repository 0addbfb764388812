"""A cache with the tokens of its rows, and a model's recurrent states.

A recurrent layer overwrites its state with every token, so the state cannot be truncated after a rejected draft. The
states after some of the last rows are therefore kept by row, and dropped or moved with the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from outrider.cache.beside import BesideRows
from outrider.cache.protocol import KVCache
from outrider.cache.states import RecurrentStates


@dataclass
class History:
    """Tokens and states of one sequence."""

    reach: int  # rows before the last whose states are kept; a cache truncated further is filled again
    tokens: list[int] = field(default_factory=list)  # of each row
    states: dict[int, Any] = field(default_factory=dict)  # after each of these rows

    def note(self, start: int, tokens: Sequence[int]) -> None:
        """Set the tokens of rows from ``start`` on, and forget earlier ones there; rows never fed are filler."""
        self.cut(start)
        self.tokens += [0] * (start - len(self.tokens))
        self.tokens += tokens

    def keep(self, row: int, state: Any, *, prune: bool) -> None:
        """Keep the state after a row. ``prune``: drop the states of rows far before it."""
        self.states[row] = state
        if prune:
            self._drop(row + 1)

    def cut(self, length: int) -> None:
        """Forget the rows from ``length`` on."""
        del self.tokens[length:]
        self._drop(length)

    def _drop(self, length: int) -> None:
        self.states = {row: s for row, s in self.states.items() if length - self.reach <= row < length}


class TextCache(BesideRows):
    """Rows of keys and values, their tokens, and states. With states, prefixes are not shared between texts."""

    states: RecurrentStates | None = None
    """None: these states are transformers' own, and ``histories`` holds them."""

    def __init__(self, rows: KVCache, *, recurrent: bool, reach: int) -> None:
        """``reach``: as in ``History``."""
        super().__init__(rows)
        self.recurrent, self._reach = recurrent, reach
        self.histories: dict[int, History] = {}

    def allocate(self, tokens: Sequence[int] = (), salt: str = "") -> int:
        slot = self.rows.allocate(() if self.recurrent else tokens, salt)
        self.histories[slot] = History(self._reach, list(tokens[: self.rows.length(slot)]))
        return slot

    def publish_prefix(self, slot: int, tokens: Sequence[int], salt: str = "") -> None:
        if not self.recurrent:
            super().publish_prefix(slot, tokens, salt)

    def free(self, slot: int) -> None:
        self.rows.free(slot)
        del self.histories[slot]

    def zero(self, slot: int) -> None:
        super().zero(slot)
        self.histories[slot] = History(self._reach)

    def truncate_to(self, slot: int, length: int) -> None:
        self.rows.truncate_to(slot, length)
        self.histories[slot].cut(length)

    def keep_path(self, slot: int, base: int, path: Sequence[int]) -> None:
        """Move the states of an accepted path with its rows.

        ::

            rows     a b | w x y z      base = 2, path = (0, 2)
            states     1   2   4
            after    a b | w y
            states     1   2 3
        """
        self.rows.keep_path(slot, base, path)
        history = self.histories[slot]
        moved = {base + i: history.states[base + node] for i, node in enumerate(path) if base + node in history.states}
        history.tokens[base : base + len(path)] = [history.tokens[base + node] for node in path]
        history.states = {row: state for row, state in history.states.items() if row < base} | moved
        history.cut(base + len(path))

    def check(self) -> None:
        super().check()
        for slot, history in self.histories.items():
            if len(history.tokens) > self.rows.length(slot):
                raise AssertionError(f"slot {slot} has {len(history.tokens)} states for {self.rows.length(slot)} rows")
