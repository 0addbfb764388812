"""``TableModel``: a model with known exact distributions, for tests of engines, caches and draft sources.

model = TableModel(table)                  # logits of the next token after each sequence of last tokens
engine = Engine(model, drafters={...}, eos_token_ids=(), vocab_size=4)
sequence_probs(table, params, prompt, 3)   # the distribution of its samples
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from outrider.cache import CacheSpec, KVCache, make_cache
from outrider.config import SamplingParams
from outrider.errors import ConfigError
from outrider.models.batch import ForwardBatch, ForwardOutput, Span
from outrider.models.config import ModelConfig
from outrider.verify.arrays import Array, Floats, host
from outrider.verify.constraint import Constraint
from outrider.verify.distribution import Context, log_weights, probs


class TableModel:
    """A model whose next token depends on the last ``order`` tokens, by a table.

    As every model, it gets new tokens alone, and finds earlier ones in the cache: a row's key is a token id, and its
    value a position. A row attends to the keys that its span's mask allows, and looks up the token at each position
    that it depends on. A missing, extra, misplaced or stale row therefore changes the output:

    ::

        cache       5@0 7@1 2@2 | 9@3 4@3 1@4      a prompt, two siblings, a child of the second
        row of 1    sees 5 7 2 4 1: the row after (2, 4, 1) if the order is 3

    A position without a row counts as token 0, and one with several rows as the sum of their ids.
    """

    def __init__(self, table: Array, *, max_seq_len: int = 256, eos_token_ids: Sequence[int] = ()) -> None:
        """``table``: float [vocab, ..., vocab], one axis for each token back, the last for the next token."""
        self.table: Floats = host(table)
        self.order = len(table.shape) - 1
        self.config = ModelConfig(
            family="table",
            vocab_size=table.shape[-1],
            hidden_size=self.order,
            intermediate_size=1,
            num_layers=1,
            num_heads=1,
            num_kv_heads=1,
            head_dim=1,
            max_seq_len=max_seq_len,
            eos_token_ids=tuple(eos_token_ids),
        )

    @classmethod
    def random(
        cls, vocab_size: int, order: int = 2, *, seed: int = 0, scale: float = 1.5, max_seq_len: int = 256
    ) -> TableModel:
        """A table of normal logits with the standard deviation ``scale``."""
        table = np.random.default_rng(seed).normal(scale=scale, size=[vocab_size] * (order + 1))
        return cls(table.astype(np.float32), max_seq_len=max_seq_len)

    dtype, device, precision = "float32", "cpu", "float32"

    def embed(self, token_ids: NDArray[np.int64]) -> Floats:
        """Each id, repeated ``order`` times: float32 [..., order]."""
        return np.repeat(np.asarray(token_ids, np.float32)[..., None], self.order, axis=-1)

    def final_norm(self, x: Floats) -> Floats:
        return x

    def compute_logits(self, hidden: Floats) -> Floats:
        """The table at the nearest ids: [n, vocab] of any float [n, order]."""
        return self._rows(np.rint(hidden).astype(np.int64) % self.table.shape[-1])

    def _rows(self, contexts: NDArray[np.int64]) -> Floats:
        """float32 [n, vocab], after contexts [n, order]."""
        rows: Floats = self.table[tuple(contexts.T)]
        return rows

    def lm_head_rows(self, token_ids: NDArray[np.int64]) -> Floats:
        raise ConfigError("a table is no product with rows: use heads without a draft vocabulary")

    def new_cache(self, spec: CacheSpec) -> KVCache:
        return make_cache(spec, layers=1, kv_heads=1, head_dim=1, dtype="float32")

    def forward(self, batch: ForwardBatch, cache: KVCache) -> ForwardOutput:
        """``hidden``, and ``features`` of every layer, are the tokens that a row depends on, its own last."""
        given = (
            np.array(batch.token_ids) if batch.inputs is None else np.rint(host(batch.inputs)[:, 0]).astype(np.int64)
        )
        contexts = []
        row = 0
        for span in batch.spans:
            rows = slice(row, row + span.count)
            ids, positions = given[rows] % self.table.shape[-1], np.array(batch.positions[rows])
            cache.write(0, span.slot, span.start, ids[:, None, None], positions[:, None, None])
            contexts.append(self._contexts(span, positions, cache))
            row += span.count
        context = np.concatenate(contexts)
        features = np.tile(context.astype(np.float32), len(batch.features)) if batch.features else None
        if batch.logit_rows is not None:
            context = context[list(batch.logit_rows)]
        return ForwardOutput(self._rows(context), context.astype(np.float32), features)

    def _contexts(self, span: Span, positions: NDArray[np.int64], cache: KVCache) -> NDArray[np.int64]:
        """int64 [count, order]: the tokens each new row depends on, its own last."""
        end = span.start + span.count
        k, v = cache.read(0, span.slot, end)
        visible = np.tri(span.count, end, span.start, dtype=np.bool_)
        if span.mask is not None:
            visible[-len(span.mask) :, end - span.mask.shape[1] :] = span.mask
        back = np.arange(self.order - 1, -1, -1)
        wanted = positions[:, None, None] - back[:, None]  # [count, order, 1]
        found = (v.ravel() == wanted) & visible[:, None]  # [count, order, end]
        context: NDArray[np.int64] = (found * k.ravel()).sum(-1).astype(np.int64) % self.table.shape[-1]
        return context


def sequence_probs(
    table: Array, params: SamplingParams, prompt: Sequence[int], length: int, constraint: Constraint | None = None
) -> NDArray[np.float64]:
    """Probability of each continuation of ``length`` tokens, by enumeration: float64 [vocab ** length].

    In lexicographic order, so that the continuation (a, b, c) is entry ``(a * vocab + b) * vocab + c``.
    """
    vocab, order = table.shape[-1], len(table.shape) - 1
    numbers, result = host(table), np.ones(1)
    for n in range(length):
        contexts = [Context(tuple(prompt), output) for output in itertools.product(range(vocab), repeat=n)]
        last = [([0] * order + [*c.prompt, *c.output])[-order:] for c in contexts]
        logits = numbers[tuple(np.array(last).T)]
        rows = log_weights(logits, [params] * len(contexts), contexts, constraint=constraint)
        result = (result[:, None] * probs(rows)).ravel()
    return result
