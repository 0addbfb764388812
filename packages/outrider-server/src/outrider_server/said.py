"""What callers' last sequences were, by the slots they named: llama.cpp's clients save slots by their numbers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

_MOST = 256  # sequences that are remembered


@dataclass(frozen=True)
class Said:
    """A sequence's tokens, prompt and output, as keys of the prefix cache, and the salt of its domain."""

    tokens: Sequence[int]
    salt: str


class LastSaid:
    """The last sequence of each slot of each caller, and each caller's last of all."""

    def __init__(self) -> None:
        self._held: OrderedDict[tuple[str, int | None], Said] = OrderedDict()

    def note(self, tenant: str, slot: int | None, said: Said) -> None:
        """``slot``: None if the request named none."""
        for key in {(tenant, slot), (tenant, None)}:
            self._held[key] = said
            self._held.move_to_end(key)
        while len(self._held) > _MOST:
            self._held.popitem(last=False)

    def last(self, tenant: str, slot: int) -> Said | None:
        return self._held.get((tenant, slot)) or self._held.get((tenant, None))

    def forget(self, tenant: str, slot: int) -> int:
        """Forget a slot's sequence; returns its tokens."""
        found = [self._held.pop((tenant, key), None) for key in (slot, None)]
        return next((len(said.tokens) for said in found if said is not None), 0)
