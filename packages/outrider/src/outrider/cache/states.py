"""Recurrent states of sequences, and the rows that may still be dropped from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from outrider.cache.pool import DType, Pool, itemsize
from outrider.errors import CapacityError, ConfigError
from outrider.extensions import extension

__all__ = ["PassSpan", "RecurrentStates", "StateShape", "states_kind"]


@dataclass(frozen=True, kw_only=True)
class StateShape:
    """The dimensions of a model's recurrent layers."""

    layers: int
    key_heads: int
    value_heads: int
    key_dim: int  # of a head; 0: the layers keep inputs of a convolution, and no state
    value_dim: int
    convolution: int  # rows of the sequence that the convolution reads

    @property
    def channels(self) -> int:
        """Numbers that the convolution reads of one row: queries, keys and values."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def update(self) -> int:
        """Numbers that apply one row to a layer's state: keys, deltas and decays."""
        if self.key_dim == 0:
            return 0
        return self.key_heads * self.key_dim + self.value_heads * (self.value_dim + 1)

    def sequence_bytes(self, pending: int) -> int:
        """Bytes of one sequence: its states, and ``pending`` rows that may be dropped."""
        state = self.value_heads * self.key_dim * self.value_dim
        rows = (self.convolution - 1 + pending) * self.channels + pending * self.update
        return self.layers * (state + rows) * itemsize("float32")


class PassSpan(Protocol):
    """A sequence's rows in a forward pass (``outrider.models.batch.Span``)."""

    @property
    def state(self) -> int: ...

    @property
    def start(self) -> int: ...

    @property
    def num_kept(self) -> int: ...


class RecurrentStates:
    """A state cannot be truncated. So it holds the *settled* rows alone; later rows are *pending*.

    ::

        rows of a sequence      0 ............ settled-1 | settled ...... length-1
        state, first inputs     hold all of these        |
        updates, later inputs                            | one entry for each of these

    A pass first applies the pending rows before its own, in order, so that their bits are those of the first time.
    Then it applies the rows that are *kept*, and leaves entries for its other rows. Rolling back drops entries.

    A place of the arrays belongs to a slot of the cache, or to a branch of one. All arrays are float32, one a recurrent
    layer; a backend's kind has its tensors in their place:

        state     [places, value_heads, key_dim, value_dim]
        inputs    [places, convolution - 1 + pending, channels], of the convolution; the first are of settled rows
        updates   [places, pending, key_heads * key_dim + value_heads * value_dim + value_heads]: key, delta, decay
    """

    grows: ClassVar[bool] = True
    """Whether a place takes memory only once it is used."""

    def __init__(self, shape: StateShape, places: int, pending: int, branches: int = 0) -> None:
        """
        Args:
            pending: the most rows of a sequence that may be dropped.
            branches: of the ``places``, those of branches.

        Raises CapacityError if memory is short.
        """
        self.shape, self.places, self.pending, self.branches = shape, places, pending, branches
        self._history = shape.convolution - 1
        try:
            self.state = self._arrays(shape.value_heads, shape.key_dim, shape.value_dim)
            self.inputs = self._arrays(self._history + pending, shape.channels)
            self.updates = self._arrays(pending, shape.update)
        except MemoryError as error:
            raise CapacityError(f"no memory for the recurrent states of {places} sequences: use fewer") from error
        self._free = list(range(places - 1, -1, -1))
        self._rows: dict[int, int] = {}
        self._settled: dict[int, int] = {}
        self._most = 0  # places that were used at once: these have memory, as the last one given back is taken first

    def _arrays(self, *sizes: int) -> list[Any]:
        return [self._zeros((self.places, *sizes)) for _ in range(self.shape.layers)]

    def _zeros(self, shape: tuple[int, ...]) -> Any:
        return Pool.zeros(shape, "float32", "cpu")

    def _taken(self, held: Any) -> NDArray[np.float32]:
        """A copy of a part of the arrays for the host."""
        copy: NDArray[np.float32] = held.copy()
        return copy

    def _given(self, array: NDArray[np.float32]) -> Any:
        """An array of the host as ``_taken`` gave it, for a part of the arrays."""
        return array

    def open(self, slot: int) -> None:
        """Give a slot a place, for a sequence without rows."""
        self._rows[slot] = self._free.pop()
        self._settled[slot] = 0
        self._most = max(self._most, len(self._rows))

    def close(self, slot: int) -> None:
        self._free.append(self._rows.pop(slot))
        del self._settled[slot]

    def bytes_of_more(self, count: int) -> int:
        """Bytes that take memory for the first time where ``count`` places more are used."""
        fresh = max(0, len(self._rows) + count - self._most) if self.grows else 0
        return fresh * self.shape.sequence_bytes(self.pending)

    def row(self, slot: int) -> int:
        """The place of a slot or branch in the arrays."""
        return self._rows[slot]

    def settled(self, slot: int) -> int:
        """The number of rows that the slot's state holds."""
        return self._settled[slot]

    def assume(self, slot: int, length: int) -> None:
        """Take the state for that of ``length`` rows, whatever it holds."""
        self._settled[slot] = length

    def passed(self, spans: Iterable[PassSpan]) -> None:
        """Record a forward pass that succeeded."""
        for span in spans:
            if span.num_kept >= 0:
                self._settled[span.state] = span.start + span.num_kept

    def check_layers(self, layers: int | None, of: int) -> None:
        """Raise ConfigError for a pass over the first ``layers`` of a model's layers: None is all."""
        if layers is not None and layers < of:
            raise ConfigError(
                f"the first {layers} of {of} layers cannot run alone, because recurrent layers would hold states of "
                "different lengths: use another draft source"
            )

    def truncate_to(self, slot: int, length: int) -> None:
        """Keep the first ``length`` rows. Raises ValueError if the state holds more rows, unless none is kept."""
        if length == 0:
            self._settled[slot] = 0  # a pass from row 0 clears the state
        elif length < self._settled[slot]:
            raise ValueError(
                f"cannot truncate to {length} rows: the recurrent state holds {self._settled[slot]}, all for good"
            )

    def keep_path(self, slot: int, base: int, path: Sequence[int]) -> None:
        """Move the entries of an accepted path, as ``KVCache.keep_path`` moves rows.

        ::

            settled 2, rows     a b | c w x y z      base = 3, path = (0, 2)
            entries                   c w x y z
            after                     c w y
        """
        first = base - self._settled[slot]
        if first < 0:
            raise ValueError(f"the recurrent state holds {self._settled[slot]} rows: those from {base} on stay")
        self.fork(slot, slot, [*range(first), *(first + node for node in path)])

    def fork(self, target: int, source: int, entries: Sequence[int]) -> None:
        """Give the slot or branch ``target`` the state of ``source`` and some of its entries, which become the first.

        ::

            source          state | c w x y        entries = (0, 2)
            target, after   state | c x
        """
        row, other, count = self._rows[target], self._rows[source], len(entries)
        base, places = self._history, [self._history + entry for entry in entries]
        if row != other:
            self.copy(row, self, other, 0)
        if count and (row != other or any(entry != i for i, entry in enumerate(entries))):
            for updates, inputs in zip(self.updates, self.inputs, strict=True):
                updates[row, :count] = updates[other, list(entries)]
                inputs[row, base : base + count] = inputs[other, places]

    def copy(self, row: int, source: RecurrentStates, source_row: int, pending: int) -> None:
        """Copy a state of the same shape, with its first ``pending`` entries, to the place ``row``."""
        for own, other in zip(self.state, source.state, strict=True):
            own[row] = other[source_row]
        for own, other in zip(self.inputs, source.inputs, strict=True):
            own[row, : self._history + pending] = other[source_row, : self._history + pending]
        for own, other in zip(self.updates, source.updates, strict=True):
            own[row, :pending] = other[source_row, :pending]

    @property
    def state_shapes(self) -> list[tuple[tuple[int, ...], Any]]:
        """Shape and dtype of each array that ``state_of`` gives."""
        inputs = [(self._history, *each.shape[2:]) for each in self.inputs]
        shapes = [*(each.shape[1:] for each in self.state), *inputs]
        return [(tuple(shape), np.float32) for shape in shapes]

    def state_of(self, slot: int) -> list[NDArray[np.float32]]:
        """A copy of a slot's state of its settled rows."""
        row = self._rows[slot]
        history = slice(self._history)
        return [self._taken(each[row]) for each in self.state] + [
            self._taken(each[row, history]) for each in self.inputs
        ]

    def load_state(self, slot: int, arrays: Sequence[NDArray[np.float32]], length: int) -> None:
        """Give a slot the state that ``state_of`` gave of ``length`` rows."""
        row, layers = self._rows[slot], self.shape.layers
        for own, other in zip(self.state, arrays[:layers], strict=True):
            own[row] = self._given(other)
        for own, other in zip(self.inputs, arrays[layers:], strict=True):
            own[row, : self._history] = self._given(other)
        self._settled[slot] = length

    def is_finite(self, row: int, pending: int) -> bool:
        """Whether a place's state and its first ``pending`` entries are finite numbers."""
        held: list[Any] = [state[row] for state in self.state]
        held += [inputs[row, : self._history + pending] for inputs in self.inputs]
        held += [updates[row, :pending] for updates in self.updates]
        return all(math.isfinite(float(part.sum())) for part in held)

    def check(self, slot: int, length: int) -> None:
        """Raise AssertionError unless the slot's state and entries make up ``length`` rows."""
        settled = self._settled[slot]
        if not settled <= length <= settled + self.pending:
            raise AssertionError(f"slot {slot} has {length} rows, {settled} in its state and {self.pending} entries")

    def check_places(self, slots: Iterable[int]) -> None:
        """Raise AssertionError unless free + used == total, and exactly ``slots`` have places."""
        free, used = len(self._free), len(self._rows)
        if free + used != self.places or set(self._free) & set(self._rows.values()):
            raise AssertionError(f"places of states are not conserved: {free} free + {used} used != {self.places}")
        if set(self._rows) != set(slots):
            raise AssertionError(f"slots {sorted(self._rows)} have states, but {sorted(slots)} have rows")


def states_kind(dtype: DType, device: Any) -> Callable[..., RecurrentStates]:
    """Makes states beside keys and values of this type: its name is NumPy's, anything else a backend's."""
    if isinstance(dtype, str):
        return RecurrentStates
    return partial(extension("backends", "torch").TorchStates, device=device)
