"""Medusa heads: one residual block for each token after the next (Cai et al. 2024, section 2.1.1)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from outrider.drafters.heads.config import HeadConfig
from outrider_torch.heads.vocabulary import ScoringHead


class MedusaHeads(ScoringHead):
    """Head i (from 0) turns the hidden state at position t into one whose LM-head row guesses token t + 2 + i.

    (The target's own LM head guesses t + 1.) Zero at first, so that training starts from the target's own head.
    """

    def __init__(self, config: HeadConfig) -> None:
        super().__init__(config)
        d = config.hidden_size
        self.blocks = nn.ModuleList(nn.Linear(d, d) for _ in range(config.heads))
        for block in self.blocks:
            assert isinstance(block, nn.Linear)
            nn.init.zeros_(block.weight)
            nn.init.zeros_(block.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """``hidden``: float [..., d] after the final norm. Returns [heads, ..., d], ready for the LM head."""
        return torch.stack([hidden + F.silu(block(hidden)) for block in self.blocks])
