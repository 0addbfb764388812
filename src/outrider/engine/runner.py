"""One forward pass of the target over the scheduled tokens and drafts of all requests."""

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
from outrider.kernels.batch import SequenceInput, pack
from outrider.models.base import Model


@dataclass(frozen=True)
class ScheduledRequest:
    """A request's part in a step: ``num_tokens`` of its pending tokens and a draft behind the last of them."""

    request: Request
    num_tokens: int
    draft: Draft

    @cached_property
    def node_order(self) -> list[int]:
        """The draft's nodes as they are packed: the longest path first, as attention reads a path in one piece
        straight from the cache, and gathers the others' keys (``kernels.attention``)."""
        return list(range(len(self.draft))) if self.draft.is_chain else longest_first(self.draft.parents)

    @cached_property
    def node_index(self) -> list[int]:
        """Where among the packed nodes each node of the draft is."""
        return [index for _, index in sorted((node, index) for index, node in enumerate(self.node_order))]

    @cached_property
    def reaches_end(self) -> bool:
        """Whether the pass includes the request's last token, so that the next one can be drawn.

        It speaks of the request as scheduled: asked before anything is committed, it does not change any more.
        """
        return self.num_tokens == self.request.num_pending_tokens

    @cached_property
    def wants_prompt_logits(self) -> bool:
        """Whether the rows of all its prompt tokens need logits; as ``reaches_end``, of the request as scheduled."""
        return self.request.wants_prompt_logprobs

    @property
    def num_logit_rows(self) -> int:
        """Rows that need logits: the last token's and the draft's, or all of a prompt's if they were asked for."""
        if self.wants_prompt_logits:
            return self.num_tokens + len(self.draft)
        return 1 + len(self.draft) if self.reaches_end else 0

    def pack_path(self, path: Sequence[int]) -> list[int]:
        """Where among the packed nodes those of an accepted path are."""
        return [self.node_index[node] for node in path]

    def sequence_input(self) -> SequenceInput:
        """::

        tokens      [ pending pending last | node node node ]
        logit_rows                     ^      ^    ^    ^       nodes in the draft's order
        """
        request, draft = self.request, self.draft
        assert request.slot is not None
        start, end = request.num_computed_tokens, request.num_computed_tokens + self.num_tokens
        if draft.is_chain:
            tokens = [*request.tokens[start:end], *draft.tokens]
            last = len(tokens)
            return SequenceInput(
                request.slot, start, tokens, range(start, start + last), range(last - self.num_logit_rows, last)
            )
        levels = depths(draft.parents)
        before_draft = range(self.num_tokens - (self.num_logit_rows - len(draft)), self.num_tokens)
        return SequenceInput(
            request.slot,
            start,
            tokens=[*request.tokens[start:end], *(draft.tokens[node] for node in self.node_order)],
            positions=[*range(start, end), *(end + levels[node] for node in self.node_order)],
            logit_rows=[*before_draft, *(self.num_tokens + index for index in self.node_index)],
            mask=self._mask(),
        )

    def _mask(self) -> Tensor:
        """bool [n, n]: nodes see their own ancestors, and all pending tokens."""
        return ancestor_mask(self.draft.parents)[self.node_order][:, self.node_order]


@dataclass(frozen=True)
class TargetOutput:
    """What a forward pass gave one request."""

    prompt_logits: Tensor | None  # [num_tokens, vocab], where log-probabilities of the prompt were asked for
    logits: Tensor  # [1 + len(draft), vocab] in the draft's order; no rows where the pass does not reach its last token
    features: Tensor | None  # [num_tokens + len(draft), len(feature_layers) * d]; nodes as they are packed
    feature_layers: tuple[int, ...]  # layers whose features these are, side by side; none: no features


def run_target(
    model: Model, cache: KVCache, scheduled: Sequence[ScheduledRequest], feature_layers: tuple[int, ...] = ()
) -> list[TargetOutput]:
    """Feed every request's tokens and drafts; ``feature_layers``: layers whose features are wanted of all rows."""
    out = model.forward(pack([each.sequence_input() for each in scheduled], features=feature_layers), cache)
    if len(scheduled) == 1:
        return [_output(scheduled[0], out.logits, out.features, feature_layers)]
    logits = torch.split(out.logits, [each.num_logit_rows for each in scheduled])
    rows = [each.num_tokens + len(each.draft) for each in scheduled]
    own = [None] * len(rows) if out.features is None else torch.split(out.features, rows)
    return [
        _output(each, part, inner, feature_layers) for each, part, inner in zip(scheduled, logits, own, strict=True)
    ]


def _output(
    scheduled: ScheduledRequest, logits: Tensor, features: Tensor | None, layers: tuple[int, ...]
) -> TargetOutput:
    if not scheduled.wants_prompt_logits:
        return TargetOutput(None, logits, features, layers)
    count = scheduled.num_tokens
    return TargetOutput(logits[:count], logits[count - 1 :], features, layers)
