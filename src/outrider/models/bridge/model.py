"""A model of transformers as the engine knows models: packed tokens in, rows of keys and values, logits out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor

from outrider.cache import CacheSpec, KVCache, make_cache
from outrider.errors import ConfigError
from outrider.kernels.batch import ForwardBatch, ForwardOutput, Span
from outrider.models.bridge.calls import Call
from outrider.models.bridge.errors import NotBridgedError
from outrider.models.bridge.layout import Heads, Layout
from outrider.models.bridge.network import NAME, Network, changes, copied
from outrider.models.bridge.state import KEPT_ROWS, RecurrentCache
from outrider.models.config import ModelConfig

TILE = 16
"""Rows of a call: fewer are filled up, more are shared out, so that every operation of a model has one shape."""

Way = Literal["packed", "row by row", "row by row, its own attention"]
WAYS: tuple[Way, ...] = ("packed", "row by row", "row by row, its own attention")


@dataclass(frozen=True)
class _Row:
    """A token on its way through the model."""

    token: int
    position: int
    span: Span  # of this row alone


class BridgedModel:
    """Runs a model in one of three ways; ``bridge.check`` finds out which is right for it.

    * packed: ``TILE`` rows of any sequences in one call, attention is ours;
    * row by row: one row in a call, with the states of its recurrent layers;
    * row by row, its own attention: the same, and its attention asks for keys and values that we hold.
    """

    def __init__(self, network: Network, config: ModelConfig, way: Way) -> None:
        self.network, self.way = network, way
        self.told_seen = 0
        """What a call of many rows is told of the tokens before it: right models do not mind."""
        parameter = next(network.module.parameters())
        self.dtype, self.device = parameter.dtype, parameter.device
        self._own = way == WAYS[2]
        network.use("eager" if self._own else NAME)
        self.layout, self.recurrent = self._probe()
        if self.recurrent and way == "packed":
            raise NotBridgedError("it carries a state from token to token")
        layers = max(len(self.layout.calls), 1)
        self.config = _sized(config, layers, self.layout)
        self._layers = layers

    @torch.inference_mode()
    def _probe(self) -> tuple[Layout, bool]:
        """The heads of its attention calls, and whether it has states; by a call on nothing."""
        rows = TILE if self.way == "packed" else 1
        call = Call(None, None, [Span(0, 0, rows)], list(range(rows)))
        fresh = self.network.new_state(self._own)
        recurrent = changes(copied(fresh), self.network.run(call, [0] * rows, fresh).state)
        if not call.found and not recurrent:
            raise NotBridgedError("its attention is not to be had by name")
        return Layout(call.found or [Heads(1, 1, 1)]), recurrent

    def new_cache(self, spec: CacheSpec) -> KVCache:
        """Rows for the attention calls; with states, prefixes are not shared."""
        rows = make_cache(
            replace(spec, prefix_reuse=False) if self.recurrent else spec,
            layers=self._layers,
            kv_heads=self.layout.kv_heads,
            head_dim=self.layout.head_dim,
            dtype=self.dtype,
            device=self.device,
        )
        return RecurrentCache(rows) if self.recurrent else rows

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch, cache: KVCache) -> ForwardOutput:
        """As ``Model.forward``. The bits of a row do not depend on the rest of the batch (on a CPU)."""
        last = (self.config.num_layers,)
        if batch.layers is not None or batch.inputs is not None or batch.features not in ((), last):
            raise ConfigError(
                f"{self.config.family} runs through transformers, which shows no layers: use a draft source that "
                "needs no features of the target"
            )
        scored = range(len(batch.token_ids)) if batch.logit_rows is None else batch.logit_rows
        wanted = set(range(len(batch.token_ids))) if batch.features else set(scored)
        logits: dict[int, Tensor] = {}
        hidden: dict[int, Tensor] = {}
        for number, row_logits, row_hidden in self._rows(batch, cache, wanted):
            logits[number], hidden[number] = row_logits, row_hidden
        none = torch.empty(0, self.config.vocab_size, dtype=self.dtype, device=self.device)
        return ForwardOutput(
            torch.stack([logits[row] for row in scored]) if len(scored) else none,
            torch.stack([hidden[row] for row in scored]) if len(scored) else none[:, :0],
            torch.stack([hidden[row] for row in range(len(batch.token_ids))]) if batch.features else None,
        )

    def _rows(self, batch: ForwardBatch, cache: KVCache, wanted: set[int]) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Number, logits and what the LM head reads, of every row that is wanted."""
        run: Callable[..., Iterator[tuple[int, Tensor, Tensor]]]
        run = self._tiles if self.way == "packed" else self._one_by_one
        yield from run(batch, cache, wanted)

    def _tiles(self, batch: ForwardBatch, cache: KVCache, wanted: set[int]) -> Iterator[tuple[int, Tensor, Tensor]]:
        count = len(batch.token_ids)
        for first in range(0, count, TILE):
            end = min(first + TILE, count)
            numbers, spare = range(first, end), TILE - (end - first)
            tokens = [*batch.token_ids[first:end], *[0] * spare]
            call = Call(cache, self.layout, _between(batch.spans, first, end),
                        [*batch.positions[first:end], *[0] * spare], self.told_seen)  # fmt: skip
            some = not wanted.isdisjoint(numbers)
            result = self.network.run(call, tokens, self.network.new_state(), logits=some)
            if len(call.found) != len(self.layout.calls):
                raise NotBridgedError(f"a pass made {len(call.found)} attention calls, not {len(self.layout.calls)}")
            for row in numbers:
                if row in wanted:
                    yield row, *_of_row(result.logits, result.hidden, row - first)

    def _one_by_one(
        self, batch: ForwardBatch, cache: KVCache, wanted: set[int]
    ) -> Iterator[tuple[int, Tensor, Tensor]]:
        first = 0
        for span in batch.spans:
            rows = [
                _Row(batch.token_ids[first + i], batch.positions[first + i], _part(span, i, i + 1))
                for i in range(span.count)
            ]
            outs = self._stateful(span, rows, cache) if isinstance(cache, RecurrentCache) else self._stateless(rows, cache)
            for number, (logits, hidden) in enumerate(outs, first):
                if number in wanted:
                    yield number, logits, hidden
            first += span.count

    def _stateless(self, rows: Sequence[_Row], cache: KVCache) -> Iterator[tuple[Tensor, Tensor]]:
        for row in rows:
            yield self._run(row, cache, self.network.new_state(self._own))[0]

    def _stateful(self, span: Span, rows: Sequence[_Row], cache: RecurrentCache) -> Iterator[tuple[Tensor, Tensor]]:
        """Each row begins with the state after the row it follows, which may be any of a tree."""
        history = cache.histories[span.slot]
        state = self._state_after(span.start - 1, span.slot, cache)
        before = span.start - 1  # the row that ``state`` is of
        for i, row in enumerate(rows):
            at, parent = span.start + i, _parent(row.span)
            if parent != before:
                state = self._state_after(parent, span.slot, cache)
            out, state = self._run(row, cache, state)
            history.note(at, row.token, row.position)
            before = at
            if span.mask is not None or i >= len(rows) - KEPT_ROWS:
                history.states[at] = copied(state)
            yield out

    def _state_after(self, row: int, slot: int, cache: RecurrentCache) -> object:
        """The state after a row that was read before: kept, or found again by reading the rows since one that is."""
        history = cache.histories[slot]
        kept = max((r for r in history.states if r <= row), default=-1)
        state = copied(history.states[kept]) if kept >= 0 else self.network.new_state(self._own)
        for at in range(kept + 1, min(row + 1, len(history.tokens))):
            again = _Row(history.tokens[at], history.positions[at], Span(slot, at, 1))
            state = self._run(again, cache, state)[1]
        return state

    def _run(self, row: _Row, cache: KVCache, state: object) -> tuple[tuple[Tensor, Tensor], object]:
        call = Call(cache, self.layout, [row.span], [row.position])
        result = self.network.run(call, [row.token], state)
        return _of_row(result.logits, result.hidden, 0), result.state

    def embed(self, token_ids: Tensor) -> Tensor:
        """Rows of the input embedding: float [..., d]. What the model does to them afterwards is its own."""
        table: Tensor = self.network.module.get_input_embeddings().weight  # type: ignore[operator]
        return table.detach()[token_ids.to(self.device)]

    def final_norm(self, x: Tensor) -> Tensor:
        """The features of a bridged model have been through its final norm."""
        return x

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Refused: only the model itself knows how."""
        raise ConfigError(_NO_HEADS.format(self.config.family))

    def lm_head_rows(self, token_ids: Tensor) -> Tensor:
        """Refused, as ``compute_logits``."""
        raise ConfigError(_NO_HEADS.format(self.config.family))

    @property
    def implementation(self) -> str:
        """transformers' code, and how it runs it."""
        return f"transformers, {self.way}"

    @property
    def precision(self) -> str:
        """The dtype's name."""
        return str(self.dtype).removeprefix("torch.")

    @property
    def cache_dtype(self) -> torch.dtype:
        """Of keys and values."""
        return self.dtype

    @property
    def weight_bytes(self) -> int:
        """Memory that the weights take."""
        return sum(p.numel() * p.element_size() for p in self.network.module.parameters())


_NO_HEADS = "{} runs through transformers: trained heads need a family of our own (docs/models.md)"


def _sized(config: ModelConfig, layers: int, layout: Layout) -> ModelConfig:
    """With the dimensions that its cache has."""
    return replace(config, num_layers=layers, num_kv_heads=layout.kv_heads, head_dim=layout.head_dim)


def _of_row(logits: Tensor, hidden: Tensor | None, row: int) -> tuple[Tensor, Tensor]:
    return logits[row], logits[row, :0] if hidden is None else hidden[row]


def _between(spans: Sequence[Span], first: int, end: int) -> list[Span]:
    """The parts of spans whose packed rows are from ``first`` to ``end``."""
    ends = [0]
    for span in spans:
        ends.append(ends[-1] + span.count)
    return [
        _part(span, max(first, a) - a, min(end, b) - a)
        for span, (a, b) in zip(spans, pairwise(ends), strict=True)
        if a < end and first < b
    ]


def _part(span: Span, first: int, end: int) -> Span:
    """The span's new rows from ``first`` to ``end``; rows before them count as kept ones.

    ::

        mask of 3 rows   x . .      rows 1 to 2    x x .      rows 0 to 1    x . .  ->  x
                         x x .                     x . x                     x x .      x x
                         x . x
    """
    later = span.count - end
    if span.mask is None:
        return Span(span.slot, span.start + first, end - first)
    rows, width = span.mask.shape
    causal = span.count - rows  # new rows before those of the mask
    top = max(first - causal, 0)
    if end <= causal:
        return Span(span.slot, span.start + first, end - first)
    mask = span.mask[top : rows - later, : width - later]
    return Span(span.slot, span.start + first, end - first, mask)


def _parent(span: Span) -> int:
    """The cache row that the span's only row follows."""
    at = span.start + span.count - 1
    if span.mask is None:
        return at - 1
    width = span.mask.shape[1]
    seen = [i for i, sees in enumerate(span.mask[-1].tolist()[:-1]) if sees]
    return at - width + 1 + seen[-1] if seen else at - width
