"""``HybridToy``: two recurrent layers and one with attention, in NumPy, as the protocol of states describes a pass.

Every row is computed by itself, in one order, so a row has the same bits in any pass. Entries that no pass may read are
filled with NaN: what is rolled back, moved or copied wrongly shows at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from outrider.cache import CacheSpec, KVCache, make_cache
from outrider.cache.states import RecurrentStates
from outrider.models.batch import ForwardBatch, ForwardOutput, Span
from outrider.models.config import ModelConfig, RecurrentLayers

Floats = NDArray[np.float32]
KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM, CONVOLUTION = 1, 2, 3, 3, 3
HIDDEN, HEAD = 8, 4


@dataclass(frozen=True)
class Entry:
    """One row's effect on a state: keys [key_heads, key_dim], deltas [value_heads, value_dim], decays [value_heads]."""

    key: Floats
    delta: Floats
    decay: Floats

    @property
    def numbers(self) -> Floats:
        return np.concatenate([self.key.ravel(), self.delta.ravel(), self.decay])

    @staticmethod
    def of(numbers: Floats) -> Entry:
        key, delta, decay = np.split(numbers, [KEY_HEADS * KEY_DIM, len(numbers) - VALUE_HEADS])
        return Entry(key.reshape(KEY_HEADS, KEY_DIM), delta.reshape(VALUE_HEADS, VALUE_DIM), decay)

    def apply(self, state: Floats) -> Floats:
        """The state [value_heads, key_dim, value_dim] after this row."""
        keys = np.repeat(self.key, VALUE_HEADS // KEY_HEADS, 0)
        new: Floats = state * self.decay[:, None, None] + keys[:, :, None] * self.delta[:, None, :]
        return new


@dataclass(frozen=True)
class Moment:
    """A state, and the convolution's last inputs [convolution - 1, channels]."""

    state: Floats
    inputs: Floats

    def after(self, entry: Entry, inputs: Floats) -> Moment:
        return Moment(entry.apply(self.state), np.concatenate([self.inputs[1:], inputs[None]]))


class HybridToy:
    """A model with recurrent states, and a vocabulary of ``vocab_size`` ids."""

    dtype, device, precision = "float32", "cpu", "float32"

    def __init__(self, vocab_size: int = 11, *, seed: int = 0, max_seq_len: int = 96) -> None:
        self.config = ModelConfig(
            family="hybrid_toy",
            vocab_size=vocab_size,
            hidden_size=HIDDEN,
            intermediate_size=1,
            num_layers=3,
            num_heads=1,
            num_kv_heads=1,
            head_dim=HEAD,
            max_seq_len=max_seq_len,
            recurrent=RecurrentLayers(
                layers=(True, False, True),
                key_heads=KEY_HEADS,
                value_heads=VALUE_HEADS,
                key_dim=KEY_DIM,
                value_dim=VALUE_DIM,
                convolution=CONVOLUTION,
            ),
        )
        rng = np.random.default_rng(seed)

        def matrix(*sizes: int) -> Floats:
            return rng.normal(scale=sizes[-1] ** -0.5, size=sizes).astype(np.float32)

        assert self.config.states is not None
        channels = self.config.states.channels
        self._embedding, self._head = 3 * matrix(vocab_size, HIDDEN), 6 * matrix(vocab_size, HIDDEN)
        self._recurrent = [
            {
                "qkv": 2 * matrix(channels, HIDDEN),
                "taps": matrix(CONVOLUTION, channels) * 2,
                "decay": matrix(VALUE_HEADS, HIDDEN),
                "beta": matrix(VALUE_HEADS, HIDDEN),
                "out": 2 * matrix(HIDDEN, VALUE_HEADS * VALUE_DIM),
            }
            for _ in range(2)
        ]
        self._attention = {
            "q": matrix(HEAD, HIDDEN),
            "k": matrix(HEAD, HIDDEN),
            "v": matrix(HEAD, HIDDEN),
            "out": matrix(HIDDEN, HEAD),
        }
        self.passes: list[ForwardBatch] = []

    def new_cache(self, spec: CacheSpec) -> KVCache:
        states = self.config.states
        return make_cache(spec, layers=1, kv_heads=1, head_dim=HEAD, dtype="float32", states=states)

    def forward(self, batch: ForwardBatch, cache: KVCache) -> ForwardOutput:
        states = cache.states
        assert states is not None
        states.check_layers(batch.layers, self.config.num_layers)
        for span in batch.spans:
            _check(span, states)
        self.passes.append(batch)
        parts, row = [], 0
        for span in batch.spans:
            x = self._embedding[list(batch.token_ids[row : row + span.count])]
            x = x + self._recur(0, span, x, states)
            x = x + self._attend(span, x, np.array(batch.positions[row : row + span.count]), cache)
            parts.append(x + self._recur(1, span, x, states))
            row += span.count
        states.passed(batch.spans)
        x = np.concatenate(parts)
        hidden = x if batch.logit_rows is None else x[list(batch.logit_rows)]
        logits = (
            np.stack([_product(self._head, row) for row in hidden]) if len(hidden) else np.zeros((0, 1), np.float32)
        )
        features = np.tile(x, len(batch.features)) if batch.features else None
        return ForwardOutput(logits, hidden, features)

    def _recur(self, layer: int, span: Span, x: Floats, states: RecurrentStates) -> Floats:
        """A recurrent layer's output [count, hidden] for a sequence's new rows."""
        state, inputs, updates = states.state[layer], states.inputs[layer], states.updates[layer]
        at, settled, before = states.row(span.state), states.settled(span.state), CONVOLUTION - 1
        if settled == span.start == 0:
            state[at], inputs[at, :before] = 0, 0
        moment = Moment(state[at].copy(), inputs[at, :before].copy())
        for i in range(span.start - settled):
            moment = moment.after(Entry.of(updates[at, i]), inputs[at, before + i])
        kept, first = max(0, span.num_kept), 0 if span.num_kept >= 0 else span.start - settled
        outputs, moments = np.zeros_like(x), {-1: moment}
        for row, parent in enumerate(_parents(span)):
            came = moments[parent]
            new = _product(self._recurrent[layer]["qkv"], x[row])
            entry, outputs[row] = self._step(layer, came, new, x[row])
            moments[row] = came.after(entry, new)
            if row >= kept:
                updates[at, first + row - kept], inputs[at, before + first + row - kept] = entry.numbers, new
        if span.num_kept >= 0:
            state[at], inputs[at, :before] = moments[kept - 1].state, moments[kept - 1].inputs
        used = first + span.count - kept
        updates[at, used:], inputs[at, before + used :] = np.nan, np.nan
        return outputs

    def _step(self, layer: int, came: Moment, new: Floats, x: Floats) -> tuple[Entry, Floats]:
        """A row's entry and output, from the row's input of the convolution and the moment before it."""
        w = self._recurrent[layer]
        mixed = (w["taps"] * np.concatenate([came.inputs, new[None]])).sum(0)
        q, k, v = np.split(np.tanh(mixed), [KEY_HEADS * KEY_DIM, 2 * KEY_HEADS * KEY_DIM])
        q, k = (part.reshape(KEY_HEADS, KEY_DIM) for part in (q, k))
        k = k / np.sqrt((k * k).sum(-1, keepdims=True) + np.float32(1e-6))
        decay, beta = (_sigmoid(_product(w[name], x)) for name in ("decay", "beta"))
        group = VALUE_HEADS // KEY_HEADS
        keys, queries = np.repeat(k, group, 0), np.repeat(q, group, 0)
        memory = (came.state * decay[:, None, None] * keys[:, :, None]).sum(1)
        entry = Entry(k, (v.reshape(VALUE_HEADS, VALUE_DIM) - memory) * beta[:, None], decay)
        read = (entry.apply(came.state) * queries[:, :, None]).sum(1)
        return entry, _product(w["out"], read.ravel())

    def _attend(self, span: Span, x: Floats, positions: NDArray[np.int64], cache: KVCache) -> Floats:
        """The attention layer's output [count, hidden]; a row's key has its position in it."""
        w = self._attention
        k, v, q = (np.stack([_product(w[name], row) for row in x]) for name in ("k", "v", "q"))
        k = k + np.sin(positions[:, None] * np.arange(1, HEAD + 1)).astype(np.float32)
        cache.write(0, span.slot, span.start, k[:, None], v[:, None])
        end = span.start + span.count
        keys, values = (part[:, 0] for part in cache.read(0, span.slot, end))
        visible = np.tri(span.count, end, span.start, dtype=np.bool_)
        if span.mask is not None:
            visible[-len(span.mask) :, end - span.mask.shape[1] :] = span.mask
        out = []
        for row in range(span.count):
            seen, own = np.ascontiguousarray(keys[visible[row]]), np.ascontiguousarray(values[visible[row]])
            weights = np.exp((seen * q[row]).sum(-1))
            out.append(_product(w["out"], (weights[:, None] * own).sum(0) / weights.sum()))
        return np.stack(out)


def _product(matrix: Floats, x: Floats) -> Floats:
    """A matrix times one row, whose bits depend on nothing else."""
    product: Floats = (matrix * x).sum(-1)
    return product


def _sigmoid(x: Floats) -> Floats:
    y: Floats = (1 / (1 + np.exp(-x))).astype(np.float32)
    return y


def _check(span: Span, states: RecurrentStates) -> None:
    """Raise ValueError for what the native library refuses."""
    settled, kept = states.settled(span.state), span.num_kept
    waiting = span.start - settled
    rows = waiting + span.count if kept < 0 else span.count - kept
    if not (0 <= waiting <= states.pending and -1 <= kept <= span.count and 0 <= rows <= states.pending):
        raise ValueError(f"start {span.start}, count {span.count}, kept {kept}, settled {settled} are out of range")
    if span.mask is not None and kept > span.count - len(span.mask):
        raise ValueError("rows of a tree cannot be kept")


def _parents(span: Span) -> Sequence[int]:
    """For each new row, the new row before it on its path; -1: none, it follows the rows before the pass."""
    parents = list(range(-1, span.count - 1))
    if span.mask is None:
        return parents
    n, t = span.mask.shape
    for i, row in enumerate(span.mask):
        own = t - n + i  # the row's own column
        above = np.flatnonzero(row[:own])
        parents[span.count - n + i] = max(-1, span.count - t + (int(above[-1]) if len(above) else -1))
    return parents
