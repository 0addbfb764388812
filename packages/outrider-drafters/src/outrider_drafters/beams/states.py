"""The recurrent states of a search's beams: each beam has one of its own."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from outrider.cache.hybrid import HybridCache
from outrider_drafters.beams.search import Node


@dataclass(eq=False)
class HeldState:
    """A state that holds the prompt and the nodes down to ``base``, with entries for rows after it.

    ::

        state and the first ``lead`` entries      prompt ... base
        later entries                             nodes[0], nodes[1], ...: a tree below ``base``
    """

    slot: int  # or the branch
    base: Node
    lead: int
    nodes: Sequence[Node] = ()

    def entries(self, node: Node) -> list[int] | None:
        """The entries that lead to ``node``; None if the state is of another path."""
        place = {own: self.lead + i for i, own in enumerate(self.nodes)}
        path: list[int] = []
        while node is not self.base:
            if node not in place or node.parent is None:
                return None
            path.append(place[node])
            node = node.parent
        return [*range(self.lead), *reversed(path)]


class BeamStates:
    """A branch of the request's slot for each live beam, and the slot's own state, which stays that of the prompt.

    ::

        before          beam ... A     state A           beam ... B     state B
        pass            A1 with drafts a b               B1
        next beams      A1 a x, A1 y                     (none)
        after           state A + A1 a, A + A1           the second is a copy, in the branch that was B's

    A pass leaves entries for all of its rows (``RecurrentStates``), so that a beam can go on from any of them.
    """

    def __init__(self, cache: HybridCache, slot: int, root: Node) -> None:
        self._states, self._branches = cache.states, cache.branches(slot)
        self._own = HeldState(slot, root, 0)
        self._held: dict[Node, HeldState] = {}  # by live beam

    def before(self, run: Sequence[Node]) -> HeldState:
        """The state from which a chain of new rows goes on, with drafts after its last one."""
        first = run[0]
        for tip in (first, first.parent):  # a beam's new row, or drafts after a row that is there already
            if tip in self._held:
                return self._held[tip]
        return next(held for tip, held in self._held.items() if first in tip.path(held.base))

    def start(self, run: Sequence[Node], row: int) -> int:
        """Prepare a pass in which ``run`` begins at this row of the slot; returns the branch to go on from."""
        held = self.before(run)
        self._states.assume(held.slot, row - held.lead)
        return held.slot

    def read_prompt(self, length: int, drafts: Sequence[Node]) -> None:
        """Record a pass that has ended the prompt of ``length`` tokens, with these drafts after it."""
        self._own.lead, self._own.nodes = length - self._states.settled(self._own.slot), drafts

    def ran(self, runs: Sequence[Sequence[Node]]) -> None:
        """Record a pass over these rows."""
        for held, run in [(self.before(run), run) for run in runs]:
            assert run[0].parent is not None
            held.base, held.lead, held.nodes = run[0].parent, 0, run

    def follow(self, live: Sequence[Node], rows: Collection[Node]) -> None:
        """Give each live beam the state of its last node that is among ``rows``, those with a row in the cache."""
        sources = [*self._held.values(), self._own]
        found: list[tuple[Node, Node, HeldState, list[int]]] = []
        for tip in live:
            last: Node = tip
            while last.parent is not None and last not in rows:
                last = last.parent
            for source in [self._held[tip], *sources] if tip in self._held else sources:
                entries = source.entries(last)
                if entries is not None:
                    found.append((tip, last, source, entries))
                    break
        keepers: dict[int, Node] = {}  # a state stays with the first beam that goes on from it
        for tip, _, source, _ in found:
            if source is not self._own:
                keepers.setdefault(source.slot, tip)
        free = [branch for branch in self._branches if branch not in keepers]
        self._held = {}
        moves: list[tuple[int, int, list[int]]] = []
        for tip, last, source, entries in found:
            slot = source.slot if keepers.get(source.slot) is tip else free.pop()
            moves.append((slot, source.slot, entries))
            self._held[tip] = HeldState(slot, last, len(entries))
        for slot, other, entries in sorted(
            moves, key=lambda move: move[0] == move[1]
        ):  # copies before changes in place
            self._states.fork(slot, other, entries)
