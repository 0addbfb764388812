"""Packing requests into one run of the target."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outrider.cache.protocol import KVCache
from outrider.core.draft import Draft
from outrider.core.tree import ancestor_mask, depths
from outrider.engine.request import Request
from outrider.models.base import ForwardBatch, Model, Span


def run_target(
    model: Model, cache: KVCache, requests: Sequence[Request], drafts: Sequence[Draft], counts: Sequence[int]
) -> Tensor:
    """Feed ``counts[i]`` pending tokens and the draft of each request.

    Returns the logits [rows, vocab] after the last pending token and after every draft node, request by request.

    ::

        request 1   [ pending pending last | node node ]   request 2   [ last | node ]
        logits                         ^      ^    ^                      ^     ^
    """
    ids: list[int] = []
    positions: list[int] = []
    spans: list[Span] = []
    rows: list[int] = []
    for request, draft, count in zip(requests, drafts, counts, strict=True):
        start, end = request.cached, request.cached + count
        assert request.slot is not None
        cache.extend(request.slot, count + len(draft))
        spans.append(Span(request.slot, start, count + len(draft), _span_mask(count, draft)))
        rows += range(len(ids) + count - 1, len(ids) + count + len(draft))
        ids += [*request.tokens[start:end], *draft.tokens]
        positions += [*range(start, end), *(end + depth for depth in depths(draft.parents))]
    batch = ForwardBatch(torch.tensor(ids), torch.tensor(positions), tuple(spans), torch.tensor(rows))
    return model.forward(batch, cache).logits


def _span_mask(count: int, draft: Draft) -> Tensor | None:
    """bool [count + n, count + n]: pending tokens are causal, nodes see them and their own ancestors.

    None, which means causal, for a chain.
    """
    if draft.is_chain:
        return None
    size = count + len(draft)
    mask = torch.ones(size, size, dtype=torch.bool).tril()
    mask[count:, count:] = ancestor_mask(draft.parents)
    return mask
