"""Packing drafts in the making into one run of a draft model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.cache import KVCache
from outrider.kernels.batch import ForwardBatch, Span
from outrider.models.base import Model


@dataclass(frozen=True)
class Feed:
    """Tokens one sequence brings to a run."""

    slot: int
    start: int  # the cache row of the first
    tokens: Sequence[int]
    positions: Sequence[int]
    mask: Tensor | None = None  # as in ``Span``
    scored: int = 1  # how many of the last ones need logits
    above: Sequence[int] = ()  # of draft nodes: which row of the draft each continues; -1: the request's last token


def run(model: Model, cache: KVCache, feeds: Sequence[Feed], layers: int | None = None) -> list[Tensor]:
    """One run over all feeds, whose rows the cache has set aside: the logits [scored, vocab] of each."""
    ids = [token for feed in feeds for token in feed.tokens]
    positions = [position for feed in feeds for position in feed.positions]
    spans: list[Span] = []
    rows: list[int] = []
    end = 0
    for feed in feeds:
        spans.append(Span(feed.slot, feed.start, len(feed.tokens), feed.mask))
        end += len(feed.tokens)
        rows += range(end - feed.scored, end)
    batch = ForwardBatch(
        torch.tensor(ids), torch.tensor(positions), tuple(spans), torch.tensor(rows, dtype=torch.int64), layers
    )
    return list(torch.split(model.forward(batch, cache).logits, [feed.scored for feed in feeds]))
