"""Packs drafts under construction into one forward pass of a draft model."""

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
    """The tokens of one sequence in a forward pass."""

    slot: int
    start: int  # the cache row of the first token
    tokens: Sequence[int]
    positions: Sequence[int]
    mask: NDArray[np.bool_] | None = None  # as in ``Span``
    scored: int = 1  # the number of last tokens that need logits
    above: Sequence[int] = ()  # the draft row of each node's parent; -1: the request's last token
    kept: int = -1  # as in ``Span``: by default all rows can be dropped


def run(model: Model, cache: KVCache, feeds: Sequence[Feed], layers: int | None = None) -> list[Array]:
    """One forward pass over all feeds: the logits [scored, vocab] of each. The cache already has room for the rows."""
    batch = pack([_input(feed) for feed in feeds], layers=layers)
    logits: Array = model.forward(batch, cache).logits
    ends = [*accumulate((feed.scored for feed in feeds), initial=0)]
    return [logits[start:end] for start, end in pairwise(ends)]


def _input(feed: Feed) -> SequenceInput:
    count = len(feed.tokens)
    scored = range(count - feed.scored, count)
    return SequenceInput(feed.slot, feed.start, feed.tokens, feed.positions, scored, feed.mask, kept=feed.kept)
