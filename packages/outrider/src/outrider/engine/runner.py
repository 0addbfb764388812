"""One forward pass of the target over the scheduled tokens and drafts of all requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

import numpy as np
from numpy.typing import NDArray

from outrider.cache.protocol import KVCache
from outrider.engine.request import Request
from outrider.models.base import HeadTarget, Model
from outrider.models.batch import SequenceInput, pack
from outrider.models.experts import ExpertReads
from outrider.verify.arrays import Array, Floats, host
from outrider.verify.batch_argmax import BatchArgmax
from outrider.verify.draft import Draft
from outrider.verify.tree import ancestor_mask, longest_first


class ScheduledRequest:
    """A request's rows in a step: ``num_tokens`` of its pending tokens, and a draft after the last of them.

    Its attributes describe the request at scheduling time, and do not change when tokens are committed.
    """

    def __init__(self, request: Request, num_tokens: int, draft: Draft) -> None:
        self.request, self.num_tokens, self.draft = request, num_tokens, draft
        self.reaches_end = num_tokens == request.num_pending_tokens
        """Whether the pass includes the request's last token, so that the next one can be drawn."""
        self.wants_prompt_logits = request.prompt_report.wants_logprobs
        """Whether all rows of prompt tokens need logits."""

    @cached_property
    def kept(self) -> int | None:
        """Rows that recurrent states take in for good (``Span.kept``); None for a model without."""
        plan = self.request.read_plan
        return None if plan is None else plan.kept(self.request.num_computed_tokens, self.num_tokens)

    @property
    def decides(self) -> bool:
        """Whether the pass has rows that decide on tokens."""
        return self.reaches_end

    @property
    def adapter(self) -> int | None:
        """The index of the request's adapter; None without one."""
        return self.request.input.adapter

    @cached_property
    def node_order(self) -> Sequence[int]:
        """The draft's nodes in packed order, the longest path first: attention reads a contiguous path straight from
        the cache, and gathers the keys of other nodes (``kernels.attention``)."""
        return range(len(self.draft)) if self.draft.is_chain else longest_first(self.draft.parents)

    @cached_property
    def node_index(self) -> Sequence[int]:
        """The packed index of each node of the draft."""
        if self.draft.is_chain:
            return self.node_order
        return [index for _, index in sorted((node, index) for index, node in enumerate(self.node_order))]

    @property
    def num_logit_rows(self) -> int:
        """The number of rows that need logits: the last token's and the draft's, or a prompt's if requested."""
        if self.wants_prompt_logits:
            return self.num_tokens + len(self.draft)
        return 1 + len(self.draft) if self.reaches_end else 0

    def pack_path(self, path: Sequence[int]) -> Sequence[int]:
        """The packed indices of an accepted path's nodes."""
        return path if self.draft.is_chain else [self.node_index[node] for node in path]

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
                request.slot,
                start,
                tokens,
                range(start, start + last),
                range(last - self.num_logit_rows, last),
                adapter=self.adapter,
                kept=self.kept,
            )
        levels = draft.depths
        before_draft = range(self.num_tokens - (self.num_logit_rows - len(draft)), self.num_tokens)
        return SequenceInput(
            request.slot,
            start,
            tokens=[*request.tokens[start:end], *(draft.tokens[node] for node in self.node_order)],
            positions=[*range(start, end), *(end + levels[node] for node in self.node_order)],
            logit_rows=[*before_draft, *(self.num_tokens + index for index in self.node_index)],
            mask=self._mask(),
            adapter=self.adapter,
            kept=self.kept,
        )

    def sequence_inputs(self) -> Sequence[SequenceInput]:
        """All rows of the request in order; several sequences if they go on from different states."""
        return [self.sequence_input()]

    def _mask(self) -> NDArray[np.bool_]:
        """bool [n, n] in packed order: each node attends to itself and its ancestors (and to all pending tokens)."""
        parents, index = self.draft.parents, self.node_index
        return ancestor_mask([-1 if parents[node] < 0 else index[parents[node]] for node in self.node_order])


@dataclass(frozen=True)
class TargetOutput:
    """The results of a forward pass for one request."""

    logits: Array  # [R, vocab], of all requests of the pass; a draft's rows in the draft's order
    largest: BatchArgmax  # of these logits
    first: int  # the row of the request's last token, if the pass includes it; the draft's rows follow
    prompt_logits: Array | None  # [num_tokens, vocab], if the prompt's log-probabilities are requested
    features: Array | None  # [num_tokens + len(draft), len(feature_layers) * d]; nodes in packed order
    feature_layers: tuple[int, ...]  # the layers of ``features``, concatenated by column; (): no features
    experts: ExpertReads | None = None  # of the whole pass


def run_target(
    model: Model,
    cache: KVCache,
    scheduled: Sequence[ScheduledRequest],
    vocab_size: int,
    feature_layers: tuple[int, ...] = (),
) -> list[TargetOutput]:
    """One forward pass over every request's tokens and drafts.

    Args:
        vocab_size: later columns of logits are padding.
        feature_layers: the layers whose features are returned for all rows.
    """
    batch = pack([part for each in scheduled for part in each.sequence_inputs()], features=feature_layers)
    inputs = _inputs(model, batch.token_ids, scheduled)
    out = model.forward(batch if inputs is None else replace(batch, inputs=inputs), cache)
    largest = BatchArgmax(out.logits, vocab_size)
    found: list[TargetOutput] = []
    scored = row = 0  # rows with logits, and all rows, of earlier requests
    for each in scheduled:
        before = each.num_tokens if each.wants_prompt_logits else 0
        prompt = out.logits[scored : scored + before] if before else None
        rows = each.num_tokens + len(each.draft)
        features = None if out.features is None else out.features[row : row + rows]
        first = scored + max(0, before - 1)
        found.append(TargetOutput(out.logits, largest, first, prompt, features, feature_layers, out.experts))
        scored += each.num_logit_rows
        row += rows
    return found


def _inputs(model: Model, token_ids: Sequence[int], scheduled: Sequence[ScheduledRequest]) -> Floats | None:
    """float32 [T, d]: the tokens' embeddings, replaced where an input source has rows; None if none has."""
    inputs: Floats | None = None
    first = 0
    for each in scheduled:
        request = each.request
        start = request.num_computed_tokens
        if start < request.prompt_length:
            found = request.input.rows(start, min(start + each.num_tokens, request.prompt_length))
            if found is not None:
                if inputs is None:
                    inputs = host(cast("HeadTarget", model).embed(np.array(token_ids, np.int64))).copy()
                inputs[[first + row for row in found[0]]] = found[1]
        first += each.num_tokens + len(each.draft)
    return inputs
