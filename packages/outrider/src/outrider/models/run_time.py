"""Times a model's forward passes, and computes the lower limits by this machine's memory and arithmetic."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from outrider.cache import CacheSpec, extend_unread
from outrider.models.base import LoadedModel
from outrider.models.batch import ForwardBatch, Span
from outrider.models.config import ModelConfig
from outrider.models.layer_kinds import num_layer_weights
from outrider.native.measure import MachineRates

__all__ = ["LeastTime", "RunTime", "bytes_read", "least_times", "time_runs"]

PROMPT_ROWS = 256
"""Rows of a prompt in ``LeastTime``."""

_CONTEXT = 128  # tokens before the timed rows
_TRIES = 7


@dataclass(frozen=True)
class RunTime:
    """Milliseconds of one forward pass, and two lower limits."""

    rows: int
    ms: float
    memory_limit_ms: float
    """Time to read all weights once."""
    arithmetic_limit_ms: float
    """Time to multiply every weight with every row."""


def time_runs(model: LoadedModel, rates: MachineRates, rows: Sequence[int] = (1, 4, 16)) -> list[RunTime]:
    """For each number of ``rows``, the fastest of a few forward passes of that many rows of one sequence, scored."""
    weights = _weights_multiplied(model.config)
    found = []
    for count in rows:
        memory = rates.memory_limit(bytes_read(model))
        arithmetic = rates.arithmetic_limit(weights, count)
        found.append(RunTime(count, *(round(1e3 * t, 2) for t in (_shortest(model, count), memory, arithmetic))))
    return found


@dataclass(frozen=True)
class LeastTime:
    """The least milliseconds of a forward pass with so many threads: of reading or of multiplying all weights."""

    threads: int
    one_row_ms: float
    prompt_ms: float
    """``PROMPT_ROWS`` rows."""


def least_times(model: LoadedModel, rates: Mapping[int, MachineRates]) -> list[LeastTime]:
    """By number of threads, with the ``rates`` of each."""
    weights, read = _weights_multiplied(model.config), bytes_read(model)
    return [
        LeastTime(threads, *(_least_ms(each, weights, read, rows) for rows in (1, PROMPT_ROWS)))
        for threads, each in rates.items()
    ]


def _least_ms(rates: MachineRates, weights: int, read: int, rows: int) -> float:
    return round(1e3 * max(rates.memory_limit(read), rates.arithmetic_limit(weights, rows)), 2)


def _weights_multiplied(c: ModelConfig) -> int:
    """Weights of all matrices that one token is multiplied with, the LM head included."""
    return num_layer_weights(c, used=True) + c.vocab_size * c.hidden_size


def bytes_read(model: LoadedModel) -> int:
    """Bytes of weights that a pass of one token reads: no separate embedding, and of experts only the token's."""
    c = model.config
    table = 0 if c.tie_embeddings else c.vocab_size * c.hidden_size
    unread = table + num_layer_weights(c) - num_layer_weights(c, used=True)
    return round(model.weight_bytes * (1 - unread / (unread + _weights_multiplied(c))))


def _shortest(model: LoadedModel, rows: int) -> float:
    """Seconds of the fastest of ``_TRIES`` passes of ``rows`` rows."""
    context = max(1, min(_CONTEXT, model.config.max_seq_len - rows))
    cache = model.new_cache(CacheSpec(max_seq_len=context + rows))
    slot, vocab_size = cache.allocate(), model.config.vocab_size
    cache.extend(slot, context)
    model.forward(_chain(slot, 0, context, vocab_size), cache)
    batch, times = _chain(slot, context, rows, vocab_size), []
    for _ in range(_TRIES):
        extend_unread(cache, slot, context, rows)
        start = time.perf_counter()
        model.forward(batch, cache)
        times.append(time.perf_counter() - start)
    return min(times)


def _chain(slot: int, start: int, count: int, vocab_size: int) -> ForwardBatch:
    positions = range(start, start + count)
    return ForwardBatch([i % vocab_size for i in positions], positions, (Span(slot, start, count),), None)
