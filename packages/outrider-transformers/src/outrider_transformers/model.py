"""A transformers model with the engine's interface: from packed tokens to rows of keys and values, and logits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outrider.cache import CacheSpec, KVCache, make_cache
from outrider.errors import ConfigError
from outrider.models.batch import ForwardBatch, ForwardOutput, Span
from outrider.models.config import ModelConfig
from outrider_transformers.calls import NAME, Call
from outrider_transformers.errors import NotBridgedError
from outrider_transformers.layout import Heads, Layout
from outrider_transformers.network import Network, changes, copied
from outrider_transformers.packed import PackedCall, between
from outrider_transformers.state import TextCache
from outrider_transformers.texts import Chain, TextCall, TextRunner, chains_of

TILE = 16
"""Rows of a call: fewer are padded, more are divided, so that every operation of a model has one shape."""

Way = Literal["packed", "text by text", "row by row"]
WAYS: tuple[Way, ...] = ("packed", "text by text", "row by row")


class BridgedModel:
    """Runs a model in one of three ways; ``bridge.check`` chooses the way.

    * packed: ``TILE`` rows of any texts in one call, with our attention (``packed``);
    * text by text: ``TILE`` rows of one text in a call, with the model's attention and recurrent layers (``texts``);
    * row by row: the same with a single row, for models whose rows also affect each other otherwise.
    """

    takes_adapters = False

    def __init__(self, network: Network, config: ModelConfig, way: Way) -> None:
        self.network, self.way = network, way
        self.told_seen = 0
        """The number of earlier tokens passed to a packed call; compatible models ignore it."""
        parameter = next(network.module.parameters())
        self.dtype, self.device = parameter.dtype, parameter.device
        network.use(NAME if way == "packed" else "eager", experts=NAME)
        self.layout, self.recurrent = self._probe()
        if self.recurrent and way == "packed":
            raise NotBridgedError("it carries a state from token to token")
        self._layers = max(len(self.layout.calls), 1)
        self.config = replace(
            config, num_layers=self._layers, num_kv_heads=self.layout.kv_heads, head_dim=self.layout.head_dim
        )
        self._texts = TextRunner(network, self.layout, self._tile, self.recurrent)

    @property
    def _tile(self) -> int:
        return 1 if self.way == "row by row" else TILE

    @torch.inference_mode()
    def _probe(self) -> tuple[Layout, bool]:
        """The heads of its attention calls, and whether it has states; from a call without a cache."""
        count, packed = self._tile, self.way == "packed"
        call: Call = TextCall(None, None, Chain(0, range(count), count), 0, count)
        if packed:
            call = PackedCall(None, None, [Span(0, 0, count)], range(count), 0)
        fresh = self.network.new_state(own_attention=not packed)
        recurrent = changes(copied(fresh), self.network.run(call, [0] * count, fresh).state)
        if not call.found and not recurrent:
            raise NotBridgedError("its attention is not to be had by name")
        return Layout(call.found or [Heads(1, 1, 1)]), recurrent

    def new_cache(self, spec: CacheSpec) -> KVCache:
        """A cache with rows for the attention calls; with states, prefixes are not shared."""
        rows = make_cache(
            replace(spec, prefix_reuse=False) if self.recurrent else spec,
            layers=self._layers,
            kv_heads=self.layout.kv_heads,
            head_dim=self.layout.head_dim,
            dtype=self.dtype,
            device=self.device,
        )
        if self.way == "packed":
            return rows
        return TextCache(rows, recurrent=self.recurrent, reach=max(16, 4 * self._tile))

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
        if batch.features and not all(len(row) for row in hidden.values()):
            raise ConfigError(
                f"{self.config.family} does not show what its LM head reads: it has no embeddings of texts"
            )
        none = torch.empty(0, self.config.vocab_size, dtype=self.dtype, device=self.device)
        return ForwardOutput(
            torch.stack([logits[row] for row in scored]) if len(scored) else none,
            torch.stack([hidden[row] for row in scored]) if len(scored) else none[:, :0],
            torch.stack([hidden[row] for row in range(len(batch.token_ids))]) if batch.features else None,
        )

    def _rows(self, batch: ForwardBatch, cache: KVCache, wanted: set[int]) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Index, logits and the LM head's input of every row in ``wanted``."""
        if isinstance(cache, TextCache):
            return self._by_text(batch, cache, wanted)
        return self._packed(batch, cache, wanted)

    def _packed(self, batch: ForwardBatch, cache: KVCache, wanted: set[int]) -> Iterator[tuple[int, Tensor, Tensor]]:
        count = len(batch.token_ids)
        for first in range(0, count, TILE):
            numbers = range(first, min(first + TILE, count))
            filler = [0] * (TILE - len(numbers))
            tokens = [*batch.token_ids[first : numbers.stop], *filler]
            positions = [*batch.positions[first : numbers.stop], *filler]
            call = PackedCall(cache, self.layout, between(batch.spans, first, numbers.stop), positions, self.told_seen)
            some = not wanted.isdisjoint(numbers)
            result = self.network.run(call, tokens, self.network.new_state(own_attention=False), logits=some)
            if len(call.found) != len(self.layout.calls):
                raise NotBridgedError(f"a pass made {len(call.found)} attention calls, not {len(self.layout.calls)}")
            for row in numbers:
                if row in wanted:
                    hidden = None if result.hidden is None else result.hidden[row - first]
                    yield row, result.logits[row - first], _or_nothing(hidden, result.logits)

    def _by_text(self, batch: ForwardBatch, cache: TextCache, wanted: set[int]) -> Iterator[tuple[int, Tensor, Tensor]]:
        first = 0
        for span in batch.spans:
            cache.histories[span.slot].note(span.start, batch.token_ids[first : first + span.count])
            for chain, new in chains_of(span):
                some = any(first + row in wanted for row in new)
                for row, (logits, hidden) in zip(new, self._texts.run(chain, cache, some), strict=True):
                    if first + row in wanted:
                        yield first + row, logits, _or_nothing(hidden, logits)
            first += span.count

    def embed(self, token_ids: Tensor | NDArray[np.int64]) -> Tensor:
        """Rows of the input embedding: float [..., d], before any scaling by the model."""
        token_ids = torch.as_tensor(token_ids)
        table: Tensor = self.network.module.get_input_embeddings().weight  # type: ignore[operator]
        return table.detach()[token_ids.to(self.device)]

    def final_norm(self, x: Tensor) -> Tensor:
        """``x`` itself: a bridged model's features are already normed."""
        return x

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Not supported: only the model itself can compute logits."""
        raise ConfigError(_NO_HEADS.format(self.config.family))

    def lm_head_rows(self, token_ids: Tensor) -> Tensor:
        """Not supported, as ``compute_logits``."""
        raise ConfigError(_NO_HEADS.format(self.config.family))

    @property
    def implementation(self) -> str:
        """The name of the implementation: transformers, and the way it is run."""
        return f"transformers, {self.way}"

    @property
    def precision(self) -> str:
        """The dtype's name."""
        return str(self.dtype).removeprefix("torch.")

    @property
    def cache_dtype(self) -> torch.dtype:
        """The dtype of keys and values."""
        return self.dtype

    @property
    def weight_bytes(self) -> int:
        """The memory of the weights, in bytes."""
        return sum(p.numel() * p.element_size() for p in self.network.module.parameters())


_NO_HEADS = "{} runs through transformers: trained heads need a family of our own (docs/families.md)"


def _or_nothing(hidden: Tensor | None, logits: Tensor) -> Tensor:
    return logits.new_empty(0) if hidden is None else hidden
