"""One sequence of a model with recurrent layers, pass by pass."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from outrider.cache import CacheSpec, KVCache
from outrider.models.base import Model
from outrider.models.batch import ForwardBatch, Span
from outrider.verify.arrays import host

Floats = NDArray[np.float32]


class SlotSequence:
    """A slot of a cache, and passes over it."""

    def __init__(self, model: Model, cache: KVCache | None = None, *, pending: int = 16) -> None:
        self.model = model
        self.cache = model.new_cache(CacheSpec(max_seq_len=200, pending=pending)) if cache is None else cache
        self.slot = self.cache.allocate()

    @property
    def length(self) -> int:
        return self.cache.length(self.slot)

    def span(self, count: int, kept: int | None = None, mask: NDArray[np.bool_] | None = None) -> Span:
        """The span of the next ``count`` rows, for which it makes room."""
        start = self.length
        self.cache.extend(self.slot, count)
        return Span(self.slot, start, count, mask, kept=kept)

    def feed(self, tokens: Sequence[int], kept: int | None = None) -> Floats:
        """Logits of a chain of tokens, of which the first ``kept`` are settled."""
        span = self.span(len(tokens), kept)
        positions = list(range(span.start, span.start + span.count))
        return self.run(tokens, positions, span)

    def feed_tree(self, tokens: Sequence[int], parents: Sequence[int], kept: int = 0, chain: int = 0) -> Floats:
        """Logits of ``chain`` rows in a chain, then of a tree below them; parents within the tree, or -1."""
        nodes = len(tokens) - chain
        mask = np.eye(nodes, dtype=bool)
        depth = [0] * nodes
        for node, parent in enumerate(parents):
            if parent >= 0:
                mask[node] |= mask[parent]
                depth[node] = depth[parent] + 1
        span = self.span(len(tokens), kept, mask)
        first = span.start + chain
        return self.run(tokens, [*range(span.start, first), *(first + d for d in depth)], span)

    def run(self, tokens: Sequence[int], positions: Sequence[int], span: Span) -> Floats:
        return host(self.model.forward(ForwardBatch(tokens, positions, (span,), None), self.cache).logits)

    def roll_back(self, length: int) -> None:
        self.cache.truncate_to(self.slot, length)
