"""What a foreign model carries from token to token besides keys and values, and how it is rolled back.

A recurrent layer overwrites its state with every token, so it cannot be cut off behind a refused draft. The state
after each of the last rows is therefore kept, by the row's number, and dropped or moved as the row is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from outrider.cache.pool import Pool
from outrider.cache.protocol import KVCache

KEPT_ROWS = 16
"""States kept behind the last row. A cache that is cut further back is filled again from its tokens."""


@dataclass
class History:
    """Of one sequence."""

    tokens: list[int] = field(default_factory=list)  # of each row
    positions: list[int] = field(default_factory=list)
    states: dict[int, Any] = field(default_factory=dict)  # after each of these rows

    def cut(self, length: int) -> None:
        """Forget the rows from ``length`` on, and states that are too far back to be needed."""
        del self.tokens[length:], self.positions[length:]
        self.states = {row: s for row, s in self.states.items() if length - KEPT_ROWS <= row < length}

    def note(self, row: int, token: int, position: int) -> None:
        """What the row ``row`` holds; rows behind it, of before, are forgotten, and rows never fed are filler."""
        del self.tokens[row:], self.positions[row:]
        self.positions += range(len(self.tokens), row)
        self.tokens += [0] * (row - len(self.tokens))
        self.tokens.append(token)
        self.positions.append(position)


class RecurrentCache:
    """A cache whose rows have states. Prefixes are not shared: a state is the sequence's own."""

    def __init__(self, rows: KVCache) -> None:
        """``rows``: keys and values of the attention calls, if there are any; made without prefix reuse."""
        self.rows = rows
        self.histories: dict[int, History] = {}

    @property
    def max_seq_len(self) -> int:
        return self.rows.max_seq_len

    @property
    def pool(self) -> Pool:
        return self.rows.pool

    def allocate(self, tokens: Sequence[int] = (), salt: str = "") -> int:
        slot = self.rows.allocate()
        self.histories[slot] = History()
        return slot

    def can_allocate(self) -> bool:
        return self.rows.can_allocate()

    def can_extend(self, slot: int, count: int) -> bool:
        return self.rows.can_extend(slot, count)

    def publish_prefix(self, slot: int, tokens: Sequence[int], salt: str = "") -> None:
        """Nothing is shared."""

    def free(self, slot: int) -> None:
        self.rows.free(slot)
        del self.histories[slot]

    def zero(self, slot: int) -> None:
        self.rows.zero(slot)
        self.histories[slot] = History()

    def length(self, slot: int) -> int:
        return self.rows.length(slot)

    def extend(self, slot: int, count: int) -> None:
        self.rows.extend(slot, count)

    def write(self, layer: int, slot: int, start: int, k: Tensor, v: Tensor) -> None:
        self.rows.write(layer, slot, start, k, v)

    def read(self, layer: int, slot: int, rows: int) -> tuple[Tensor, Tensor]:
        return self.rows.read(layer, slot, rows)

    def table(self, slot: int, rows: int) -> list[int]:
        return self.rows.table(slot, rows)

    def truncate_to(self, slot: int, length: int) -> None:
        self.rows.truncate_to(slot, length)
        self.histories[slot].cut(length)

    def keep_path(self, slot: int, base: int, path: Sequence[int]) -> None:
        """Move the states of an accepted path with its rows.

        ::

            rows     a b | w x y z      base = 2, path = (0, 2)
            states   . 1   2 3 4 5
            after    a b   w y
            states   . 1   2 4
        """
        self.rows.keep_path(slot, base, path)
        history = self.histories[slot]
        moved = {base + i: history.states[base + node] for i, node in enumerate(path) if base + node in history.states}
        history.tokens[base : base + len(path)] = [history.tokens[base + node] for node in path]
        history.positions[base : base + len(path)] = [history.positions[base + node] for node in path]
        history.states = {row: state for row, state in history.states.items() if row < base} | moved
        history.cut(base + len(path))

    def free_tokens(self) -> int:
        return self.rows.free_tokens()

    def check(self) -> None:
        self.rows.check()
        for slot, history in self.histories.items():
            if len(history.tokens) > self.rows.length(slot):
                raise AssertionError(f"slot {slot} has {len(history.tokens)} states for {self.rows.length(slot)} rows")
