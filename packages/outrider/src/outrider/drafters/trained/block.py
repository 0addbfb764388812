"""Drafts a block of tokens in one pass of decoder layers over the target's features (docs/algorithms/dflash.md)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from outrider.drafters.api import Drafter, RequestView
from outrider.drafters.context import DrafterContext
from outrider.drafters.heads.config import HeadConfig
from outrider.drafters.heads.weights import HeadWeights
from outrider.drafters.trained.feature_drafter import FeatureDrafter, reach_of
from outrider.drafters.trained.heads import native_target
from outrider.drafters.trained.native_eagle import NativeEagle
from outrider.drafters.trained.runner import HeadRunner
from outrider.drafters.trained.selector import NativeSelector, Selector
from outrider.drafters.trained.sequences import FeatureSequence
from outrider.drafters.trees.pending_draft import PendingDraft, drafts_of, grow_parallel
from outrider.extensions import extension
from outrider.models.batch import Span
from outrider.verify.arrays import Array, joined, padded, split_rows
from outrider.verify.draft import Draft

_AT_ONCE = 64  # most features of a request in one pass with its block


def build(context: DrafterContext) -> Drafter:
    """The source ``dflash``."""
    head = context.heads["dflash"]
    if not isinstance(head, HeadWeights):
        made: Drafter = extension("backends", "torch", "a head on torch").build_dflash(context)
        return made
    target, c = native_target(context.target), head.config
    runner = NativeEagle(head, target, replace(context.cache, prefix_reuse=False))
    selector = NativeSelector(head, target) if c.selector_rank else None
    masks = np.concatenate([np.zeros((1, 2, c.hidden_size), np.float32), head["masks"]])
    return BlockDrafter(runner, selector, masks, c, vocab_size=context.vocab_size)


def build_dspark(context: DrafterContext) -> Drafter:
    """The source ``dspark``, which torch computes."""
    made: Drafter = extension("backends", "torch", "a DSpark head").build_dspark(context)
    return made


class BlockDrafter(FeatureDrafter):
    """A block drafter in the manner of DFlash: one pass per step over the waiting features and the block after them.

    ::

        cache slot   [ rows of earlier features | new features' rows | rows of the block: dropped after the pass ]
        guesses                                     ... token 1        token 2, token 3 ...
    """

    def __init__(
        self, runner: HeadRunner, selector: Selector | None, masks: Array, config: HeadConfig, *, vocab_size: int
    ) -> None:
        """
        Args:
            runner: runs the head's layers.
            selector: the head's, or None.
            masks: float [heads, 2, d], by a row's offset in the block: added to the embedding and to the feature.
                Zero at offset 0.
            vocab_size: logits from this column on are padding.
        """
        self._config, self._vocab_size, self._selector = config, vocab_size, selector
        self._masks = masks
        super().__init__(runner, config.feature_layers, reach_of(config))

    def propose(self, requests: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        """Drafts for requests all of whose tokens but the last have been read."""
        asked = self._asked(requests, budgets)
        depths = {id: min(self._config.heads, budget, r.depth_limit) for id, (r, budget) in asked.items()}
        self._run_blocks([(request, depths[id]) for id, (request, _) in asked.items()])
        pending = [
            PendingDraft(
                request, self._sequences[id].slot, budget if request.speculation.tree else depths[id],
                self._vocab_size, self._config.acceptance, self._runner.vocabulary,
                self._config.calibration,
            )
            for id, (request, budget) in asked.items() if self._is_ready(id, depths[id])
        ]  # fmt: skip
        if pending:
            blocks = [(self._sequences[each.request.id], depths[each.request.id]) for each in pending]
            logits = padded([sequence.logits[:depth] for sequence, depth in blocks])
            grow_parallel(pending, logits, self._after([sequence.outputs[:depth] for sequence, depth in blocks]))
        return drafts_of(pending, requests, "dflash")

    def _after(self, outputs: Sequence[Array]) -> Callable[[int, Sequence[int], Sequence[int]], Array] | None:
        """The argument ``after`` of ``grow_parallel``. ``outputs``: the layers' outputs of each draft, [depth, d]."""
        selector = self._selector
        if selector is None or max(map(len, outputs)) == 1:
            return None
        gates = padded([selector.gates(out) for out in outputs])  # [depths, drafts, rank]
        return lambda level, drafts, tokens: selector(tokens, gates[level, list(drafts)])

    def _is_ready(self, id: str, depth: int) -> bool:
        """Whether the logits of the request's first ``depth`` guesses have been computed."""
        sequence = self._sequences[id]
        return 0 < depth <= len(sequence.logits) and not sequence.waiting

    def _run_blocks(self, asked: Sequence[tuple[RequestView, int]]) -> None:
        """One pass over the waiting features of every request and a block of the requested depth after them."""
        long = [request for request, _ in asked if self._sequences[request.id].num_waiting > _AT_ONCE]
        self._run_waiting(long, leave=1)
        fed: list[tuple[FeatureSequence, int]] = []
        spans: list[Span] = []
        tokens: list[int] = []
        positions: list[int] = []
        features: list[Array] = []
        known: list[int] = []  # the feature index of each row
        offsets: list[int] = []  # the offset of each row from the last feature of its request; 0: a row of the text
        scored: list[int] = []
        for request, depth in asked:
            sequence = self._sequences[request.id]
            count, ahead = sequence.num_waiting, depth - 1
            if not 0 < count <= _AT_ONCE or depth < 1 or not self._cache.can_extend(sequence.slot, count + ahead):
                continue
            at, some = sequence.next(count)
            first = known[-1] + 1 if known else 0
            spans.append(Span(sequence.slot, len(sequence.positions), count + ahead))
            scored += range(len(tokens) + count - 1, len(tokens) + count + ahead)
            tokens += [*(request.tokens[position + 1] for position in at), *[request.tokens[-1]] * ahead]
            positions += [*at, *range(at[-1] + 1, at[-1] + depth)]
            known += [*range(first, first + count), *[first + count - 1] * ahead]
            offsets += [*[0] * count, *range(1, depth)]
            features.append(some)
            sequence.take(at)
            fed.append((sequence, depth))
        if not fed:
            return
        masks = self._masks[offsets]  # [rows, 2, d]
        inputs = self._runner.fuse(joined(features))[known] + masks[:, 1]
        out, logits = self._run(inputs, tokens, positions, spans, scored, masks[:, 0])
        counts = [depth for _, depth in fed]
        parts = zip(split_rows(out[scored], counts), split_rows(logits, counts), strict=True)
        for (sequence, _), (own, guesses) in zip(fed, parts, strict=True):
            sequence.outputs, sequence.logits = own, guesses
            self._cache.truncate_to(sequence.slot, len(sequence.positions))
