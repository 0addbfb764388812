"""Rows of one text in one call, each at a fixed place of a call of fixed shape.

::

    positions    0 ... 15 | 16 17 18 19 20 . . . |     a tile is a call of 16 rows, from a multiple of 16 on
    before       a ... p  | q  r  s                    rows that the cache holds
    new                           t  u                 a token and a draft; the last rows of the tile are filler

The tile is run as a whole: rows before the new ones are computed again, at no cost, as reading the weights takes a
call's time. So a row's bits depend on its own text alone: its position gives shape and place, the rows before it are
its text, and no row attends to those after it. The model runs as in transformers, with its own attention and
recurrent layers. Its state after each full tile is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from outrider.models.batch import Span
from outrider_torch.kernels.attention.tree_tiles import chains, tree_base
from outrider_transformers.calls import Call
from outrider_transformers.errors import NotBridgedError
from outrider_transformers.layout import Layout
from outrider_transformers.network import Network, NetworkOutput, copied
from outrider_transformers.state import TextCache


@dataclass(frozen=True)
class Chain:
    """A text, or a path of a tree after one: the cache row of each position, and the number of new rows."""

    slot: int
    rows: Sequence[int]  # cache rows by position
    new: int  # the number of new rows, the last ones

    @property
    def straight(self) -> bool:
        """Whether the chain's rows are in order in the cache."""
        return isinstance(self.rows, range)


class TextCall(Call):
    """Positions ``first`` and later of a chain, with the model's own attention over the result of ``extend``."""

    is_one_text = True

    def __init__(self, cache: TextCache | None, layout: Layout | None, chain: Chain, first: int, count: int) -> None:
        super().__init__(layout, range(first, first + count), first)
        self._cache, self._chain = cache, chain

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """k, v: [1, kv_heads, count, d] -> [1, kv_heads, n, d], appended to all earlier rows in new memory."""
        call = self._next(k, v)
        if k.shape[2] != len(self.positions):
            raise NotBridgedError(f"{k.shape[2]} keys in a call of {len(self.positions)} rows")
        if self._cache is None or self._layout is None:
            return k, v
        own, chain = self._layout.calls[call], self._chain
        self._write(self._cache, self._layout, call, k, v)
        if self.seen == 0:
            return k, v
        reach = self.seen if chain.straight else max(chain.rows) + 1
        keys, values = self._layout.read(self._cache, call, chain.slot, reach)
        if not chain.straight:
            order = torch.tensor(chain.rows[: self.seen], device=k.device)
            keys, values = keys.index_select(0, order), values.index_select(0, order)
        keys, values = keys[..., : own.key_dim], values[..., : own.value_dim]
        return _joined(keys, k), _joined(values, v)

    def _write(self, cache: TextCache, layout: Layout, call: int, k: Tensor, v: Tensor) -> None:
        """Write the new rows only: earlier ones may be shared."""
        rows, first = self._chain.rows, max(self.seen, len(self._chain.rows) - self._chain.new)
        end = min(len(rows), self.seen + len(self.positions))
        k, v = (x[0].transpose(0, 1) for x in (k, v))
        if self._chain.straight and first < end:
            part = slice(first - self.seen, end - self.seen)
            layout.write(cache, call, self._chain.slot, rows[first], k[part], v[part])
            return
        for position in range(first, end):
            part = slice(position - self.seen, position - self.seen + 1)
            layout.write(cache, call, self._chain.slot, rows[position], k[part], v[part])


@dataclass(frozen=True)
class TextRunner:
    """Runs chains through a network, tile by tile."""

    network: Network
    layout: Layout
    tile: int
    recurrent: bool

    def run(self, chain: Chain, cache: TextCache, wanted: bool = True) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Logits and the LM head's input of each new row; the cache's history has their tokens."""
        first = len(chain.rows) - chain.new
        for start in range(first - first % self.tile, len(chain.rows), self.tile):
            result = self._run_tile(chain, cache, start, wanted)
            for position in range(max(first, start), min(start + self.tile, len(chain.rows))):
                at = position - start if wanted else 0
                yield result.logits[at], None if result.hidden is None else result.hidden[at]

    def _run_tile(self, chain: Chain, cache: TextCache, start: int, wanted: bool) -> NetworkOutput:
        history, end = cache.histories[chain.slot], start + self.tile
        tokens = [history.tokens[row] for row in chain.rows[start:end]]
        full = len(tokens) == self.tile
        state = self._state_before(chain, cache, start)
        call = TextCall(cache, self.layout, chain, start, self.tile)
        result = self.network.run(call, [*tokens, *[0] * (self.tile - len(tokens))], state, logits=wanted)
        if len(call.found) != len(self.layout.calls) * bool(call.found):
            raise NotBridgedError(f"a pass made {len(call.found)} attention calls, not {len(self.layout.calls)}")
        if full and self.recurrent:
            history.keep(chain.rows[end - 1], result.state, prune=chain.straight)
        return result

    def _state_before(self, chain: Chain, cache: TextCache, start: int) -> Any:
        """The state before the tile at ``start``, kept or recomputed."""
        if start == 0 or not self.recurrent:
            return self.network.new_state(own_attention=True)
        history, row = cache.histories[chain.slot], chain.rows[start - 1]
        missing = []  # tiles without a kept end state
        while start > 0 and chain.rows[start - 1] not in history.states:
            start -= self.tile
            missing.append(start)
        for at in reversed(missing):
            before = Chain(chain.slot, chain.rows[: at + self.tile], 0)
            self._run_tile(before, cache, at, False)
        return copied(history.states[row])


def chains_of(span: Span) -> Iterator[tuple[Chain, Sequence[int]]]:
    """The texts that a span's new rows continue, each with the new rows that it computes."""
    if span.mask is None:
        yield Chain(span.slot, range(span.start + span.count), span.count), range(span.count)
        return
    base, causal = tree_base(span), span.count - len(span.mask)
    if causal:
        yield Chain(span.slot, range(span.start + causal), causal), range(causal)
    for fresh, path in chains(span):
        if fresh:
            yield Chain(span.slot, [*range(base), *(base + row for row in path)], len(fresh)), fresh


def _joined(before: Tensor, new: Tensor) -> Tensor:
    """Join [n, heads, d] and [1, heads, count, d] -> [1, heads, n + count, d]."""
    return torch.cat([before.transpose(0, 1)[None], new], dim=2)
