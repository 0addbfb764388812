"""A whole block of tokens from one pass over a layer or two on the target's features (docs/algorithms/dflash.md)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from outrider.cache import CacheSpec
from outrider.drafters.api import Drafter, RequestView
from outrider.drafters.context import DrafterContext
from outrider.drafters.heads.diffusion import DiffusionHead
from outrider.drafters.trained.diffusion import DiffusionDrafter
from outrider.drafters.trained.eagle_runner import make_runner
from outrider.drafters.trained.feature_drafter import FeatureDrafter, FeatureSequence, joined, reach_of
from outrider.drafters.trained.selector import Selector
from outrider.drafters.trees.pending_draft import PendingDraft, drafts_of, grow_parallel
from outrider.models.base import HeadTarget
from outrider.models.batch import Span
from outrider.verify.draft import Draft
from outrider_torch.drafters.torch_target import torch_target
from outrider_torch.heads.dflash import BlockHead

_AT_ONCE = 64  # features of a request that go through the layers together with its block


def build(context: DrafterContext) -> Drafter:
    """The source ``dflash``."""
    head, target = context.heads["dflash"], context.require_target()[0]
    if isinstance(head, DiffusionHead):
        return DiffusionDrafter(target, head, vocab_size=context.vocab_size, cache=context.cache)
    assert isinstance(head, BlockHead)
    return BlockDrafter(target, head, vocab_size=context.vocab_size, cache=context.cache)


class BlockDrafter(FeatureDrafter):
    """A block drafter of DFlash's kind: one pass a step, for the features that wait and for the block behind them.

    ::

        cache slot   [ rows of earlier features | rows of new ones | rows of the block: dropped after the pass ]
        guesses                                   ... token 1        token 2, token 3 ...
    """

    def __init__(self, target: HeadTarget, head: BlockHead, *, vocab_size: int, cache: CacheSpec) -> None:
        """``head`` becomes the drafter's own: its layers are packed. ``cache``: the target's, for its slots."""
        c, target = head.config, torch_target(target)
        self._config = c
        self._vocab_size = vocab_size
        self._masks = torch.zeros(c.heads, 2, c.hidden_size, device=target.device, dtype=target.dtype)  # by offset
        self._masks[1:] = head.masks.detach()
        self._selector = Selector(head, target) if c.selector_rank else None
        super().__init__(make_runner(head, target, replace(cache, prefix_reuse=False)), c.feature_layers, reach_of(c))

    @torch.inference_mode()
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
            logits = pad_sequence([sequence.logits[:depth] for sequence, depth in blocks])
            grow_parallel(pending, logits, self._after([sequence.outputs[:depth] for sequence, depth in blocks]))
        return drafts_of(pending, requests, "dflash")

    def _after(self, outputs: Sequence[Tensor]) -> Callable[[int, Sequence[int], Sequence[int]], Tensor] | None:
        """What tokens add to the scores behind them, as ``grow_parallel`` takes it. ``outputs``: [depth, d] of each."""
        selector = self._selector
        if selector is None or max(map(len, outputs)) == 1:
            return None
        gates = pad_sequence([selector.gates(out) for out in outputs])  # [depths, drafts, rank]
        return lambda level, drafts, tokens: selector(tokens, gates[level, list(drafts)])

    def _is_ready(self, id: str, depth: int) -> bool:
        """Whether the logits of the request's first ``depth`` guesses are there."""
        sequence = self._sequences[id]
        return 0 < depth <= len(sequence.logits) and not sequence.waiting

    def _run_blocks(self, asked: Sequence[tuple[RequestView, int]]) -> None:
        """One pass over all waiting features and a block of the depth asked for behind those of each request."""
        long = [request for request, _ in asked if self._sequences[request.id].num_waiting > _AT_ONCE]
        self._run_waiting(long, leave=1)
        fed: list[tuple[FeatureSequence, int]] = []
        spans: list[Span] = []
        tokens: list[int] = []
        positions: list[int] = []
        features: list[Tensor] = []
        known: list[int] = []  # of each row: which of the features
        offsets: list[int] = []  # of each row behind the last feature of its request; 0: a row of the text
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
        parts = zip(torch.split(out[scored], counts), torch.split(logits, counts), strict=True)
        for (sequence, _), (own, guesses) in zip(fed, parts, strict=True):
            sequence.outputs, sequence.logits = own, guesses
            self._cache.truncate_to(sequence.slot, len(sequence.positions))
