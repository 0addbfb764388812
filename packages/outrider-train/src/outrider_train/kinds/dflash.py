"""Training of a block drafter: every row of an answer is the anchor of a block, and all blocks are run together.

As in a step of EAGLE's unrolling, the rows ``offset`` behind all anchors are one pass. Each attends to the text up to
its anchor, then to the rows of its block up to itself. A row counts where the block's earlier guesses are right, so
the selector reads the document's token before it, which is the accepted one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from outrider.drafters.heads.config import HeadConfig
from outrider_torch.heads import make_head
from outrider_torch.heads.dflash import BlockHead, gates
from outrider_torch.heads.eagle import Attend, DecoderLayer, EagleLayer
from outrider_train.batches import Batch
from outrider_train.kinds.eagle import Unrolled, start_from_target
from outrider_train.target.llama import Llama
from outrider_train.tasks import DraftPosition, HeadTask

_ADDING = ("self_attn.o_proj.weight", "mlp.down_proj.weight")  # the projections that write to the residual stream
_NAMES = {"hidden_norm.weight": "input_layernorm.weight"}  # of a head's layer, and of the target's


class DFlashTask(HeadTask):
    """Blocks of ``heads`` tokens; layers, masks and the selector's codebooks learn together."""

    module: BlockHead

    def __init__(self, module: BlockHead, config: HeadConfig, target: Llama, *, decay: float) -> None:
        """``decay``: weight of each offset, relative to the offset before."""
        super().__init__(module, config, target, depth=config.heads, max_shift=config.heads)
        self.decay = decay
        ids = torch.arange(config.scored) if self.vocabulary is None else self.vocabulary
        scored = torch.full((config.vocab_size,), config.scored)  # row of each token; behind all: not scored
        scored[ids.cpu()] = torch.arange(config.scored)
        self._scored = scored.to(target.embedding.device)

    def head(self) -> Tensor:
        """float [scored, d + rank]: the selector adds its product to the LM head's."""
        rows, after = super().head(), self.module.after
        return rows if after is None else torch.cat([rows.to(after.dtype), after], dim=1)

    def draft_positions(self, batch: Batch, step: int | None) -> Iterator[DraftPosition]:
        p, asked = batch.context, batch.queries
        embeddings = F.embedding(batch.tokens[:, 1 : p + asked + 1], self.target.embedding)
        features = self.module.fuse(batch.features.to(embeddings.dtype))
        layers = [
            Unrolled(batch, behind, self.config.window) for behind in self._read_context(batch, embeddings, features)
        ]
        turns = itertools.cycle(layers)

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return next(turns)(q, k, v)

        for offset in range(self.depth):
            row = self.module.block_row(embeddings[:, p:], features[:, p:], offset)
            out = self.module(*row, batch.positions[:, p:] + offset, attend)
            rows = self._selected(out, batch.tokens[:, p + 1 + offset : p + 1 + offset + asked], offset)
            yield DraftPosition(rows.flatten(0, 1), 1 + offset, self.decay**offset)

    def _selected(self, out: Tensor, tokens: Tensor, offset: int) -> Tensor:
        """Input of ``head``: outputs [B, A, d], joined with the selector's codes of the tokens before the guesses."""
        hidden, before, gate = self.module.scorable(out), self.module.before, self.module.gate
        if before is None or gate is None:
            return hidden
        if offset == 0:  # the row itself has read that token
            codes = before.new_zeros(*tokens.shape, before.shape[1])
        else:
            codes = F.embedding(self._scored[tokens], torch.cat([before, before.new_zeros(1, before.shape[1])]))
            codes = codes * gates(out.to(codes.dtype), gate, self.config.rms_norm_eps)
        return torch.cat([hidden.to(codes.dtype), codes], dim=-1)

    def _read_context(
        self, batch: Batch, embeddings: Tensor, features: Tensor
    ) -> Iterator[tuple[Tensor, Tensor] | None]:
        """Keys and values of the context rows in each layer, [B, P, kv_heads, head_dim]; None without context."""
        p = batch.context
        beside, x, positions = embeddings[:, :p], features[:, :p], batch.positions[:, :p]
        attend = _causal(batch.attention_mask[:, :p], self.config.window)
        for i, layer in enumerate(self.module.layers):
            assert isinstance(layer, DecoderLayer)
            yield layer.self_attn.keys(layer.reads(beside, x), positions) if p else None
            if p and i + 1 < len(self.module.layers):
                x = layer(beside, x, positions, attend)


def _causal(mask: Tensor, window: int) -> Attend:
    """Causal attention among rows [B, n]; padded rows attend to themselves, to keep the softmax finite."""
    rows = torch.arange(mask.shape[1], device=mask.device)
    back = rows[:, None] - rows
    seen = (back >= 0) & (back < (window or len(rows))) & mask[:, None] | (back == 0)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=seen[:, None], enable_gqa=True)
        return out.transpose(1, 2)

    return attend


@torch.no_grad()
def start_blocks_from_target(module: BlockHead, target: Llama) -> None:
    """Initial weights: those of EAGLE-3 in the first layer; the other layers are the identity."""
    start_from_target(module, target)
    _pass_through(module, target)


@torch.no_grad()
def blocks_from_eagle(eagle: EagleLayer, config: HeadConfig, target: Llama) -> BlockHead:
    """A block drafter of ``config`` whose first guess is that of ``eagle``, of kind eagle3."""
    module = make_head(config)
    assert isinstance(module, BlockHead)
    module.load_state_dict(eagle.state_dict(), strict=False)
    _pass_through(module, target)
    return module


def config_from_eagle(config: HeadConfig, *, heads: int, layers: int, selector_rank: int) -> HeadConfig:
    """The configuration of the block drafter that begins with the layer of an eagle3 head."""
    return replace(
        config,
        kind="dflash",
        heads=heads,
        num_layers=layers,
        selector_rank=selector_rank,
        norm_output=False,  # outputs feed no later step, and the LM head's input is normed in any case
        acceptance=(),
        training={},
    )


def _pass_through(module: BlockHead, target: Llama) -> None:
    """Start layers after the first as the target's last layer, if sizes agree, with zero output projections."""
    last = target.model.layers[-1].state_dict()
    for layer in list(module.layers)[1:]:
        for name, weight in layer.state_dict().items():  # shares the parameters' memory
            theirs = last.get(_NAMES.get(name, name))
            if name in _ADDING:
                weight.zero_()
            elif theirs is not None and theirs.shape == weight.shape:
                weight.copy_(theirs)
