"""The order in which a pass takes its rows through recurrent layers, and the entries that it reads and writes.

::

    pending rows    replays, one after the other, with all sequences that have one
    new rows        levels: a chain's rows one by one, a tree's by depth, with all sequences that have some

A level begins with the states behind its rows' parents, which are rows of the level before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from outrider.cache.states import RecurrentStates
from outrider.models.batch import Span

__all__ = ["Level", "Replay", "Settling", "StatePlan", "plan_states"]


@dataclass(frozen=True)
class Settling:
    """States that hold their kept rows now."""

    of: Tensor  # int64 [n]: among the states of a level
    places: Tensor  # int64 [n]


@dataclass(frozen=True)
class Replay:
    """Entries that are applied together."""

    rows: slice  # of ``StatePlan.replayed``
    of: Tensor | None  # int64 [n]: sequences; None: all


@dataclass(frozen=True)
class Level:
    """Rows that are computed together."""

    rows: slice  # of ``StatePlan.order``
    parents: Tensor | None  # int64 [n]: among the states of the level before; None: all of them, in order
    settling: Settling | None


@dataclass(frozen=True)
class StatePlan:
    """Built once for a forward pass, and used by every recurrent layer.

    *Flat* rows count the rows of all places one after the other.
    """

    places: Tensor  # int64 [sequences]
    fresh: Tensor | None  # int64 [n]: places of sequences that begin, whose states are cleared
    replayed: Tensor  # int64 [n]: flat rows of updates
    replays: tuple[Replay, ...]
    settling: Settling | None  # before the first level
    levels: tuple[Level, ...]
    order: Tensor | None  # int64 [n]: the packed row of each row of the levels; None: packing order, all rows
    history: Tensor  # int64 [n]: flat rows of inputs that the convolution reads
    windows: Tensor  # int64 [T, convolution]: what it reads for each row, of the history and then the packed rows
    last_inputs: tuple[Tensor, Tensor] | None  # int64 [n] each: flat rows of inputs, and where they come from
    entries: tuple[Tensor, Tensor, Tensor] | None  # int64 [n] each: packed rows, flat rows of inputs and of updates


@dataclass
class _Sequence:
    """A sequence of a pass: packed rows from ``first`` on."""

    span: Span
    first: int
    place: int
    settled: int
    history: int = 0  # the first of its rows of the history

    @property
    def waiting(self) -> int:
        """Pending rows before the new ones."""
        return self.span.start - self.settled

    @property
    def kept(self) -> int:
        return self.span.num_kept


def plan_states(spans: Sequence[Span], states: RecurrentStates, rows: int, device: torch.device) -> StatePlan:
    """Plan the pass over ``spans``, packed one after the other into ``rows`` rows with padding behind them.

    Raises ValueError if more rows are pending than there is room for, or a slot comes twice.
    """
    ends = accumulate(span.count for span in spans)
    given = [
        _Sequence(s, end - s.count, states.row(s.state), states.settled(s.state))
        for s, end in zip(spans, ends, strict=True)
    ]
    _check(given, states.pending)
    convolution, pending = states.shape.convolution, states.pending
    size = convolution - 1 + pending  # rows of inputs of a place
    history = list[int]()
    for each in given:
        each.history = len(history)
        history += [each.place * size + i for i in range(convolution - 1 + each.waiting)]
    windows = [[0] * convolution for _ in range(rows)]
    levels, last_inputs, entries = _Levels(len(given)), list[tuple[int, int]](), list[tuple[int, int, int]]()
    for at, each in enumerate(given):
        own = _windows(each, len(history), convolution)
        windows[each.first : each.first + each.span.count] = own[1:]
        levels.add(at, each)
        if each.kept >= 0:
            last_inputs += [(each.place * size + i, source) for i, source in enumerate(own[each.kept][1:])]
        kept, behind = max(each.kept, 0), 0 if each.kept >= 0 else each.waiting
        for row in range(kept, each.span.count):
            entry = behind + row - kept
            entries.append(
                (each.first + row, each.place * size + convolution - 1 + entry, each.place * pending + entry)
            )
    replayed, replays = _replays(given, pending, device)
    order = levels.order
    fresh = [each.place for each in given if each.span.start == 0]

    def columns(table: Sequence[tuple[int, ...]]) -> list[Tensor]:
        return [torch.tensor(column, device=device) for column in zip(*table, strict=True)]

    return StatePlan(
        places=torch.tensor([each.place for each in given], device=device),
        fresh=torch.tensor(fresh, device=device) if fresh else None,
        replayed=replayed,
        replays=replays,
        settling=_settling([(at, s.place) for at, s in enumerate(given) if s.kept == 0], device),
        levels=levels.made(device),
        order=None if order == list(range(rows)) else torch.tensor(order, device=device),
        history=torch.tensor(history, dtype=torch.int64, device=device),
        windows=torch.tensor(windows, device=device),
        last_inputs=tuple(columns(last_inputs)) if last_inputs else None,  # type: ignore[arg-type]
        entries=tuple(columns(entries)) if entries else None,  # type: ignore[arg-type]
    )


def _check(given: Iterable[_Sequence], pending: int) -> None:
    places = set[int]()
    for each in given:
        masked = 0 if each.span.mask is None else len(each.span.mask)
        left = each.span.count - each.kept if each.kept >= 0 else each.waiting + each.span.count
        fits = 0 <= each.waiting <= pending and -1 <= each.kept <= each.span.count - masked and left <= pending
        if not fits or each.place in places:
            raise ValueError(f"rows of slot {each.span.slot} are out of range of its recurrent state")
        places.add(each.place)


def _windows(of: _Sequence, before: int, convolution: int) -> list[list[int]]:
    """What the convolution reads for the row before the new ones, and for each of these: [1 + count][convolution].

    ``before``: rows of the whole history.
    """
    end = of.history + convolution - 1 + of.waiting
    made = [list(range(end - convolution, end))]
    for row, parent in enumerate(_parents(of.span)):
        made.append([*made[parent + 1][1:], before + of.first + row])
    return made


def _parents(span: Span) -> list[int]:
    """For each new row, the new row before it on its path; -1: the last row before the new ones."""
    made = list(range(-1, span.count - 1))
    if span.mask is not None:
        masked, seen = span.mask.shape
        for i, row in enumerate(span.mask):
            marked = row[: seen - masked + i].nonzero()[0]
            if len(marked):
                made[span.count - masked + i] = max(-1, int(marked[-1]) + span.count - seen)
            else:
                made[span.count - masked + i] = span.count - masked - 1
    return made


def _settling(pairs: Sequence[tuple[int, int]], device: torch.device) -> Settling | None:
    if not pairs:
        return None
    of, places = zip(*pairs, strict=True)
    return Settling(torch.tensor(of, device=device), torch.tensor(places, device=device))


def _replays(given: Sequence[_Sequence], pending: int, device: torch.device) -> tuple[Tensor, tuple[Replay, ...]]:
    """Sequences with fewer pending rows begin later, so that all end together."""
    flat, made, most = list[int](), list[Replay](), max(each.waiting for each in given)
    for step in range(most):
        active = [(at, each) for at, each in enumerate(given) if each.waiting >= most - step]
        rows = slice(len(flat), len(flat) + len(active))
        flat += [each.place * pending + step - most + each.waiting for _, each in active]
        of = None if len(active) == len(given) else torch.tensor([at for at, _ in active], device=device)
        made.append(Replay(rows, of))
    return torch.tensor(flat, dtype=torch.int64, device=device), tuple(made)


class _Levels:
    """New rows by their depth below the row before them."""

    def __init__(self, sequences: int) -> None:
        self._sizes = [sequences]  # states of each level, that before the first with them
        self._rows: list[list[int]] = []
        self._parents: list[list[int]] = []
        self._settling: list[list[tuple[int, int]]] = []

    def add(self, at: int, of: _Sequence) -> None:
        """Add the rows of sequence ``at``."""
        found = [(-1, at)]  # level, and place in it, of the row before the new ones and of each of these
        for row, parent in enumerate(_parents(of.span)):
            level, place = found[parent + 1][0] + 1, found[parent + 1][1]
            if level == len(self._rows):
                self._sizes.append(0)
                self._rows.append([])
                self._parents.append([])
                self._settling.append([])
            found.append((level, self._sizes[level + 1]))
            self._sizes[level + 1] += 1
            self._rows[level].append(of.first + row)
            self._parents[level].append(place)
        if of.kept > 0:
            level, place = found[of.kept]
            self._settling[level].append((place, of.place))

    @property
    def order(self) -> list[int]:
        """The packed rows, level by level."""
        return [row for rows in self._rows for row in rows]

    def made(self, device: torch.device) -> tuple[Level, ...]:
        levels, first = list[Level](), 0
        for rows, parents, settling, before in zip(
            self._rows, self._parents, self._settling, self._sizes[:-1], strict=True
        ):
            every = parents == list(range(before))
            places = None if every else torch.tensor(parents, device=device)
            levels.append(Level(slice(first, first + len(rows)), places, _settling(settling, device)))
            first += len(rows)
        return tuple(levels)
