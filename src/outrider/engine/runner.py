"""Packing requests into one run of the target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from outrider.cache.protocol import KVCache
from outrider.core.draft import Draft
from outrider.core.tree import ancestor_mask, depths, longest_first
from outrider.engine.request import Request
from outrider.kernels.batch import ForwardBatch, Span
from outrider.models.base import Model


@dataclass(frozen=True)
class Work:
    """A request's part in a step: ``count`` of its pending tokens and a draft behind the last of them."""

    request: Request
    count: int
    draft: Draft

    @cached_property
    def order(self) -> list[int]:
        """The draft's nodes as they are packed: the longest path first, as attention reads a path in one piece
        straight from the cache, and gathers the others' keys (``models.attention``)."""
        return list(range(len(self.draft))) if self.draft.is_chain else longest_first(self.draft.parents)

    @cached_property
    def place(self) -> list[int]:
        """Where among them each node is."""
        return [at for _, at in sorted((node, at) for at, node in enumerate(self.order))]

    @property
    def decides(self) -> bool:
        """Whether the run reaches the request's last token, so that the next one can be drawn."""
        return self.count == self.request.pending

    @property
    def scored(self) -> int:
        """Rows that need logits: the last token's and the draft's, or all of a prompt's if they were asked for."""
        if self.request.wants_prompt_logprobs:
            return self.count + len(self.draft)
        return 1 + len(self.draft) if self.decides else 0


@dataclass(frozen=True)
class Scored:
    """What a run gave one request."""

    logits: Tensor  # [Work.scored, vocab], nodes in the draft's order
    features: Tensor | None  # [Work.count + len(draft), width], if asked for; nodes as they are packed


def run_target(model: Model, cache: KVCache, works: Sequence[Work], features: tuple[int, ...] = ()) -> list[Scored]:
    """Feed every request's tokens; the logits of each request's scored rows, and ``features`` of all its rows.

    ::

        request 1   [ pending pending last | node node ]   request 2   [ last | node ]   request 3   [ pending ... ]
        logits                         ^      ^    ^                      ^     ^
    """
    ids: list[int] = []
    positions: list[int] = []
    spans: list[Span] = []
    rows: list[int] = []
    for work in works:
        request, draft = work.request, work.draft
        start, end = request.cached, request.cached + work.count
        assert request.slot is not None
        spans.append(Span(request.slot, start, work.count + len(draft), _span_mask(work)))
        tree = len(ids) + work.count  # its first row
        rows += range(tree - (work.scored - len(draft)), tree)
        rows += (tree + place for place in work.place)
        deep = depths(draft.parents)
        ids += [*request.tokens[start:end], *(draft.tokens[node] for node in work.order)]
        positions += [*range(start, end), *(end + deep[node] for node in work.order)]
    scored = torch.tensor(rows, dtype=torch.int64)
    batch = ForwardBatch(torch.tensor(ids), torch.tensor(positions), tuple(spans), scored, features=features)
    out = model.forward(batch, cache)
    logits = torch.split(out.logits, [work.scored for work in works])
    if out.features is None:
        return [Scored(part, None) for part in logits]
    inner = torch.split(out.features, [span.count for span in spans])
    return [Scored(part, own) for part, own in zip(logits, inner, strict=True)]


def _span_mask(work: Work) -> Tensor | None:
    """bool [n, n]: nodes see their own ancestors, and all pending tokens; None for a chain, which is causal."""
    if work.draft.is_chain:
        return None
    return ancestor_mask(work.draft.parents)[work.order][:, work.order]
