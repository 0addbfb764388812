"""Packing drafts in the making into one forward pass of a draft model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from outrider.cache import KVCache
from outrider.models.base import Model
from outrider.models.batch import SequenceInput, pack
from outrider.verify.arrays import Array


@dataclass(frozen=True)
class Feed:
    """Tokens one sequence brings to a forward pass."""

    slot: int
    start: int  # the cache row of the first
    tokens: Sequence[int]
    positions: Sequence[int]
    mask: NDArray[np.bool_] | None = None  # as in ``Span``
    scored: int = 1  # how many of the last ones need logits
    above: Sequence[int] = ()  # of draft nodes: which row of the draft each continues; -1: the request's last token


def run(model: Model, cache: KVCache, feeds: Sequence[Feed], layers: int | None = None) -> list[Array]:
    """One forward pass over all feeds, whose rows the cache has set aside: the logits [scored, vocab] of each."""
    batch = pack([_input(feed) for feed in feeds], layers=layers)
    logits: Array = model.forward(batch, cache).logits
    ends = [*accumulate((feed.scored for feed in feeds), initial=0)]
    return [logits[start:end] for start, end in pairwise(ends)]


def _input(feed: Feed) -> SequenceInput:
    count = len(feed.tokens)
    return SequenceInput(
        feed.slot, feed.start, feed.tokens, feed.positions, range(count - feed.scored, count), feed.mask
    )
