"""A block drafter's head: EAGLE-3's layers, whose rows after the last token guess a whole block in one pass.

::

    position   embedding         feature     scores
    t          E[t + 1]          g_t         token t + 2     an EAGLE-3 row
    t + 1      E[t + 1] + m_1    g_t + f_1   token t + 3     m, f: ``masks``, learned, one pair for each offset
    t + 2      E[t + 1] + m_2    g_t + f_2   token t + 4

A row attends to the text's rows up to t and to the block's rows up to itself, so the first guesses of a block are
independent of the block's length, and a short block is cheap.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from outrider.drafters.heads.config import HeadConfig
from outrider_torch.heads.eagle import EagleLayer


class BlockHead(EagleLayer):
    """The head of kind "dflash": ``heads`` tokens from one pass, and a selector that makes them agree.

    The selector is a low-rank table in two codebooks, weighted by the guessing row: after token u, token v has
    ``(before[u] * gate) . after[v]`` added to its score. Rows are those of the scored tokens.
    """

    def __init__(self, config: HeadConfig) -> None:
        super().__init__(config)
        d, rank = config.hidden_size, config.selector_rank
        self.masks = nn.Parameter(torch.zeros(config.heads - 1, 2, d))
        self.before = nn.Parameter(torch.randn(config.scored, rank) / rank**0.5) if rank else None
        self.after = nn.Parameter(torch.zeros(config.scored, rank)) if rank else None
        self.gate = nn.Parameter(torch.zeros(rank, d)) if rank else None

    def block_row(self, embeddings: Tensor, features: Tensor, offset: int) -> tuple[Tensor, Tensor]:
        """Embeddings and fused features of the rows ``offset`` after text rows, from the text rows': [..., d] each."""
        if offset == 0:
            return embeddings, features
        mask = self.masks[offset - 1].to(embeddings.dtype)
        return embeddings + mask[0], features + mask[1]


def gates(out: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Weights of the selector's dimensions for outputs [..., d]: [..., rank], all 1 while ``weight`` [rank, d] is 0."""
    return 1 + F.linear(F.rms_norm(out, out.shape[-1:], eps=eps), weight)
