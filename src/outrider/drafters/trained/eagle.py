"""One decoder layer continues the target's features (docs/algorithms/eagle.md)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

import torch
from torch import Tensor

from outrider.cache import CacheSpec, KVCache
from outrider.core.draft import EMPTY, Draft
from outrider.drafters.api import Drafter, RequestView
from outrider.drafters.context import DrafterContext
from outrider.drafters.draft_cache import PREFILL_CHUNK
from outrider.drafters.trained.eagle_runner import make_runner
from outrider.drafters.trees.pending_draft import PendingDraft, drafts_of, grow
from outrider.heads.eagle import EagleLayer
from outrider.kernels.batch import Span
from outrider.models.base import HeadTarget


@dataclass(eq=False)
class _Sequence:
    """What the head knows of one request.

    ::

        cache slot   [ rows of the target's features, at ``positions`` | rows of the draft ... ]
        waiting      features that have not been through the layer yet
    """

    slot: int
    positions: list[int] = field(default_factory=list)  # ascending; tokens from a prefix cache have no features
    waiting: list[tuple[range, Tensor]] = field(default_factory=list)  # positions, float [n, width]
    end: int = 0  # the position behind the last feature
    outputs: Tensor = field(default_factory=lambda: torch.empty(0))  # [1 + fed, d]: the last row's, the draft rows'
    logits: Tensor = field(default_factory=lambda: torch.empty(0))  # [1, vocab or draft vocab], of the last row

    def next(self, count: int) -> tuple[list[int], Tensor]:
        """Up to ``count`` of the waiting features and their positions."""
        positions = [p for some, _ in self.waiting for p in some][:count]
        return positions, torch.cat([features for _, features in self.waiting])[:count]

    def take(self, positions: list[int]) -> None:
        """Move these, the first waiting ones, to the rows of the cache."""
        self.positions += positions
        done = positions[-1] + 1
        self.waiting = [(some[max(0, done - some[0]) :], f[max(0, done - some[0]) :]) for some, f in self.waiting]
        self.waiting = [(some, f) for some, f in self.waiting if some]

    def forget(self, start: int) -> int:
        """Drop everything from position ``start`` on; the rows that stay."""
        del self.positions[bisect_left(self.positions, start) :]
        self.waiting = [(some[: start - some[0]], f[: start - some[0]]) for some, f in self.waiting if some[0] < start]
        return len(self.positions)


def build(context: DrafterContext) -> Drafter:
    """The source ``eagle``."""
    head = context.heads["eagle"]
    assert isinstance(head, EagleLayer)
    return EagleDrafter(context.require_target()[0], head, vocab_size=context.vocab_size, cache=context.cache)


class EagleDrafter(Drafter):
    """EAGLE-1, 2 and 3 (Li et al. 2024, 2024, 2025): which, is a matter of the head's kind and the tree asked for.

    The row at position t pairs the target's feature at t with the token at t + 1 and guesses the token at t + 2. So all
    features there are, with the tokens behind them, end in the guess that follows the last token. A draft's rows go on
    with the layer's own outputs for features; when their tokens are accepted the target's features take their place.
    """

    def __init__(self, target: HeadTarget, head: EagleLayer, *, vocab_size: int, cache: CacheSpec) -> None:
        """``head`` becomes the drafter's own: its layers are packed. ``cache``: the target's, for its slots."""
        c = head.config
        self._vocab_size, self._learned = vocab_size, c.acceptance
        self.feature_layers = c.feature_layers or (target.config.num_layers,)
        self._runner = make_runner(head, target, replace(cache, prefix_reuse=False))
        self._cache = self._runner.cache
        self._sequences: dict[str, _Sequence] = {}

    @property
    def caches(self) -> Sequence[KVCache]:
        return (self._cache,)

    def start(self, request: RequestView) -> None:
        self.finish(request.id)
        self._sequences[request.id] = _Sequence(self._cache.allocate())

    def finish(self, request_id: str) -> None:
        sequence = self._sequences.pop(request_id, None)
        if sequence is not None:
            self._cache.free(sequence.slot)

    def read(self, request: RequestView, start: int, features: Tensor) -> None:
        sequence = self._sequences[request.id]
        if start < sequence.end:  # the request is read again
            self._cache.truncate_to(sequence.slot, sequence.forget(start))
        sequence.end = start + len(features)
        sequence.waiting.append((range(start, sequence.end), features))

    def propose(self, requests: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        """Drafts for requests all of whose tokens but the last have been read."""
        asked = {
            request.id: (request, budget)
            for request, budget in zip(requests, budgets, strict=True)
            if budget > 0 and 0 < self._sequences[request.id].end == len(request.tokens) - 1
        }
        ready = self._read_waiting([request for request, _ in asked.values()])
        if not ready:
            return [EMPTY] * len(requests)
        pending = [
            PendingDraft(
                request, self._sequences[id].slot, budget, self._vocab_size, self._learned, self._runner.vocabulary
            )
            for id, (request, budget) in asked.items()
            if id in ready
        ]
        last = [self._sequences[each.request.id].logits for each in pending]
        grow(pending, last, fits=self._fits, run=self._grow, source="eagle")
        for each in pending:
            sequence = self._sequences[each.request.id]
            self._cache.truncate_to(sequence.slot, len(sequence.positions))
            sequence.outputs = sequence.outputs[:1]
        return drafts_of(pending, requests, "eagle")

    def _read_waiting(self, requests: Sequence[RequestView]) -> set[str]:
        """Run the layer over waiting features, in shared runs of limited size; the ids of those there was room for."""
        left = [request for request in requests if self._sequences[request.id].waiting]
        while left:
            fed: list[_Sequence] = []
            spans: list[Span] = []
            tokens: list[int] = []
            positions: list[int] = []
            features: list[Tensor] = []
            for request in left:
                sequence = self._sequences[request.id]
                at, some = sequence.next(PREFILL_CHUNK - len(tokens))
                if at and self._cache.can_extend(sequence.slot, len(at)):
                    fed.append(sequence)
                    spans.append(Span(sequence.slot, len(sequence.positions), len(at)))
                    tokens += [request.tokens[position + 1] for position in at]
                    positions += at
                    features.append(some)
                    sequence.take(at)
            if not fed:
                break
            last = [end - 1 for end in accumulate(span.count for span in spans)]
            out, logits = self._run(self._runner.fuse(_joined(features)), tokens, positions, spans, last)
            for i, sequence in enumerate(fed):
                sequence.outputs, sequence.logits = out[last[i] : last[i] + 1].clone(), logits[i : i + 1]
            left = [request for request in left if self._sequences[request.id].waiting]
        return {request.id for request in requests if not self._sequences[request.id].waiting}

    def _fits(self, each: PendingDraft, rows: int) -> bool:
        return self._cache.can_extend(each.slot, rows)

    def _grow(self, growing: Sequence[PendingDraft]) -> list[Tensor]:
        """Run the layer over a level of all drafts, each node going on from its parent's output."""
        feeds = [each.feed() for each in growing]
        sequences = [self._sequences[each.request.id] for each in growing]
        before = [_rows(sequence.outputs, feed.above) for sequence, feed in zip(sequences, feeds, strict=True)]
        spans = [
            Span(sequence.slot, len(sequence.positions) + len(sequence.outputs) - 1, len(feed.tokens), feed.mask)
            for sequence, feed in zip(sequences, feeds, strict=True)
        ]
        tokens = [token for feed in feeds for token in feed.tokens]
        positions = [position - 1 for feed in feeds for position in feed.positions]
        out, logits = self._run(_joined(before), tokens, positions, spans, range(len(tokens)))
        counts = [span.count for span in spans]
        for sequence, part in zip(sequences, torch.split(out, counts), strict=True):
            sequence.outputs = torch.cat([sequence.outputs, part])
        return list(torch.split(logits, counts))

    def _run(
        self,
        features: Tensor,
        tokens: list[int],
        positions: list[int],
        spans: Sequence[Span],
        logit_rows: Sequence[int],
    ) -> tuple[Tensor, Tensor]:
        """One run of the layer, with room made for its rows: its outputs [T, d], and logits of ``logit_rows``."""
        for span in spans:
            self._cache.extend(span.slot, span.count)
        return self._runner.run(features, tokens, positions, spans, logit_rows)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _rows(outputs: Tensor, above: Sequence[int]) -> Tensor:
    """The outputs [1 + fed, d] that draft rows go on from; -1 is the first."""
    if len(above) == 1:
        return outputs[1 + above[0], None]
    return outputs.index_select(0, torch.tensor([1 + row for row in above], device=outputs.device))
