"""Published DFlash and DSpark heads: a masked block, filled in by one pass (docs/algorithms/dflash.md)."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from outrider.cache import CacheSpec
from outrider.drafters.api import RequestView
from outrider.drafters.trained.feature_drafter import FeatureDrafter
from outrider.drafters.trees.pending_draft import ByToken, PendingDraft, drafts_of, grow_parallel
from outrider.models.base import HeadTarget
from outrider.models.batch import Span
from outrider.verify.draft import Draft
from outrider_torch.drafters.head_parts import Scores, own_cache, packed
from outrider_torch.drafters.torch_target import torch_target
from outrider_torch.heads.diffusion import DiffusionHead, block_tokens
from outrider_torch.heads.dspark import DSparkHead
from outrider_torch.heads.eagle import Attend
from outrider_torch.kernels.native_tensors import as_tensors

_BEHIND = -1e4  # added to non-candidates: drafted only if a grammar allows no candidate


@dataclass(frozen=True)
class Block:
    """A masked block to fill in."""

    slot: int
    context: Sequence[int]  # positions of the features before it, in order of the cache's rows
    last: int  # the last token
    position: int  # of the last token


class ContextRunner:
    """A ``HeadRunner`` that keeps keys and values of features in a cache, and fills in the blocks after them."""

    def __init__(self, head: DiffusionHead, target: HeadTarget, cache: CacheSpec) -> None:
        """The runner takes ownership of ``head``. ``cache``: the specification of its own cache."""
        self._config = head.config
        self._target, self._head = target, packed(head, target)
        self._scores = Scores(self._head, target)
        self.vocabulary = self._scores.vocabulary
        self.cache = own_cache(cache, head.config, target)

    def fuse(self, features: Tensor) -> Tensor:
        """See ``HeadRunner``."""
        return self._head.fuse(as_tensors(features))

    def run(
        self, features: Tensor, tokens: Sequence[int], positions: Sequence[int], spans: Sequence[Span],
        logit_rows: Sequence[int], added: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """See ``HeadRunner``; features alone guess no token, so outputs and logits have no columns."""
        at = torch.tensor(positions, device=self._target.device)
        for layer, (k, v) in enumerate(self._head.context(features, at)):
            first = 0
            for span in spans:
                part = slice(first, first + span.count)
                self.cache.write(layer, span.slot, span.start, k[part], v[part])
                first += span.count
        return features[:, :0], features[: len(logit_rows), :0]

    def fill(self, blocks: Sequence[Block]) -> tuple[Tensor, Tensor]:
        """Fill whole blocks: outputs [blocks, guesses, d], and logits [blocks, guesses, vocab or draft vocab]."""
        rows = self._head.block_size
        tokens = [token for block in blocks for token in block_tokens(block.last, self._config)]
        at = [block.position + i for block in blocks for i in range(rows)]
        out: Tensor = self._head(
            self._target.embed(torch.tensor(tokens)),
            torch.tensor(at, device=self._target.device),
            self._attention(blocks),
        )
        guesses = out.unflatten(0, (-1, rows))[:, rows - self._config.heads :]
        return guesses, self._scores(guesses.flatten(0, 1)).unflatten(0, guesses.shape[:2])

    def _attention(self, blocks: Sequence[Block]) -> Attend:
        """Rows attend to their whole block and the context before it; the n-th call is the n-th layer's."""
        layers, rows = itertools.count(), self._head.block_size
        windows = self._config.layer_windows or (0,) * self._config.num_layers
        sinks = [layer.self_attn.sinks for layer in self._head.own_layers()]

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            layer, outs = next(layers), []
            window = windows[layer]
            for i, block in enumerate(blocks):
                part, end = slice(i * rows, (i + 1) * rows), len(block.context)
                start = bisect_left(block.context, block.position - window) if window else 0
                keys, values = (x[start:] for x in self.cache.read(layer, block.slot, end))
                mask = None
                if window and self._config.causal_windows:
                    mask = torch.ones(rows, end - start + rows, dtype=torch.bool, device=q.device).tril(end - start)
                keys, values = torch.cat([keys.to(k.dtype), k[part]]), torch.cat([values.to(v.dtype), v[part]])
                outs.append(_attended(q[part], keys, values, mask, sinks[layer]))
            return torch.cat(outs)

        return attend

    @property
    def sees_tokens(self) -> bool:
        """Whether a row's scores depend on the token before."""
        return self._head.candidate_selector is not None or getattr(self._head, "markov", None) is not None

    def selected(self, outputs: Tensor, logits: Tensor, before: Sequence[int]) -> Tensor:
        """Additions to logits [n, scored] of outputs [n, d] by the tokens ``before``.

        A selector's are very low for non-candidates.
        """
        tokens = torch.tensor(before, device=outputs.device)
        if isinstance(self._head, DSparkHead):
            assert self._head.markov is not None
            return self._head.markov(outputs, tokens).to(logits.dtype)  # type: ignore[no-any-return]
        selector = self._head.candidate_selector
        assert selector is not None
        candidates = logits.topk(self._config.selector_top_k, dim=-1).indices
        gained = selector(outputs, tokens, candidates).to(logits.dtype)
        return torch.full_like(logits, _BEHIND).scatter_(-1, candidates, gained)

    def sure(self, outputs: Tensor, before: Sequence[int]) -> Tensor:
        """Log-probabilities that the target accepts the tokens of outputs [n, d] behind ``before``: float32 [n]."""
        assert isinstance(self._head, DSparkHead)
        return self._head.sure(outputs, torch.tensor(before, device=outputs.device))


def _attended(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, sinks: Tensor | None) -> Tensor:
    """Attention of q: [n, heads, head_dim] to k, v: [m, kv_heads, head_dim].

    mask: bool [n, m]. sinks: [heads], a further score of each head, without a value.
    """
    if sinks is not None:  # a key of zeros, whose score is the sink
        k, v = (torch.cat([x, torch.zeros_like(x[:1])]) for x in (k, v))
        seen = torch.zeros(len(q), len(k) - 1, device=q.device, dtype=q.dtype)
        if mask is not None:
            seen = seen.masked_fill(~mask, -torch.inf)
        own = sinks.to(q.dtype)[:, None, None].expand(-1, len(q), 1)
        mask = torch.cat([seen.expand(len(sinks), -1, -1), own], -1)[None]
    inputs = [x.transpose(0, 1)[None] for x in (q, k, v)]
    out = F.scaled_dot_product_attention(inputs[0], inputs[1], inputs[2], attn_mask=mask, enable_gqa=True)
    return out[0].transpose(0, 1)


class DiffusionDrafter(FeatureDrafter):
    """A published DFlash or DSpark head: fills whole blocks, and drafts the requested number of guesses."""

    _runner: ContextRunner

    def __init__(self, target: HeadTarget, head: DiffusionHead, *, vocab_size: int, cache: CacheSpec) -> None:
        """The drafter takes ownership of ``head`` and packs its layers. ``cache``: the target's, for its slots."""
        self._config, self._vocab_size = head.config, vocab_size
        self._source = "dflash" if head.config.dspark is None else "dspark"
        target = torch_target(target)
        super().__init__(ContextRunner(head, target, replace(cache, prefix_reuse=False)), head.config.feature_layers)

    @torch.inference_mode()
    def propose(self, requests: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        """Drafts for requests with exactly one unread token, the last."""
        asked = self._asked(requests, budgets)
        done = self._run_waiting([request for request, _ in asked.values()])
        depths = {id: min(self._config.heads, budget, r.depth_limit) for id, (r, budget) in asked.items()}
        drafting = [(r, budget) for id, (r, budget) in asked.items() if id in done and depths[id] > 0]
        pending = [
            PendingDraft(
                request, self._sequences[request.id].slot, budget if request.speculation.tree else depths[request.id],
                self._vocab_size, self._config.acceptance, self._runner.vocabulary,
            )
            for request, budget in drafting
        ]  # fmt: skip
        if pending:
            outputs, logits = self._runner.fill([self._block(request) for request, _ in drafting])
            logits = pad_sequence([row[: depths[r.id]] for row, (r, _) in zip(logits, drafting, strict=True)])
            outputs = outputs.transpose(0, 1)
            grow_parallel(pending, logits, self._after(outputs, logits), self._sure(outputs), from_root=True)
        return drafts_of(pending, requests, self._source)

    def _after(self, outputs: Tensor, logits: Tensor) -> ByToken | None:
        """Additions of tokens to the next token's logits, for ``grow_parallel``; arguments by level, then by draft."""
        if not self._runner.sees_tokens:
            return None

        def after(level: int, drafts: Sequence[int], tokens: Sequence[int]) -> Tensor:
            own = list(drafts)
            return self._runner.selected(outputs[level][own], logits[level][own], tokens)

        return after

    def _sure(self, outputs: Tensor) -> ByToken | None:
        """The confidence head, for ``grow_parallel``; arguments as of ``_after``."""
        if self._config.dspark is None or not self._config.dspark.confidence:
            return None
        return lambda level, drafts, tokens: self._runner.sure(outputs[level][list(drafts)], tokens)

    def _block(self, request: RequestView) -> Block:
        sequence = self._sequences[request.id]
        return Block(sequence.slot, sequence.positions, request.tokens[-1], len(request.tokens) - 1)
