"""The cost of drafting, timed before any request, for sources that encode an input before they draft."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from outrider.cache import CacheSpec, extend_unread
from outrider.models.base import Model
from outrider.models.batch import SequenceInput, pack
from outrider.models.inputs import InputSource, has_encoder

_CONTEXT, _PASSES = 32, 9  # context rows of a timed pass, and the number of passes


@dataclass(frozen=True)
class DraftingCost:
    """The minimal seconds for drafting a request."""

    level: float  # seconds per level of a chain
    reading: Callable[[InputSource], float]  # seconds for the encoder before the first draft

    def plus(self, other: DraftingCost) -> DraftingCost:
        """The cost of a source that runs both."""
        return DraftingCost(self.level + other.level, lambda given: self.reading(given) + other.reading(given))


def time_drafts(model: Model) -> DraftingCost | None:
    """The cost of drafting with ``model``; None for a model without an encoder."""
    if not has_encoder(model):
        return None
    seconds, positions = model.time_encoder()

    def reading(given: InputSource) -> float:
        return 0.0 if given.is_computed(model) else seconds * given.positions / positions

    return DraftingCost(_time_level(model), reading)


def _time_level(model: Model) -> float:
    """The median seconds of a one-row pass."""
    context = min(_CONTEXT, model.config.max_seq_len - 1)
    cache = model.new_cache(CacheSpec(slots=1, max_seq_len=context + 1))
    slot = cache.allocate()
    times: list[float] = []
    for _ in range(_PASSES):
        extend_unread(cache, slot, context, 1)
        batch = pack([SequenceInput(slot, context, [0], [context], range(1))])
        began = time.perf_counter()
        model.forward(batch, cache)
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:])
