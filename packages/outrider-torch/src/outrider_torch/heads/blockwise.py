"""Blockwise parallel decoding: one feed-forward layer for all next tokens (Stern et al. 2018, section 4)."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from outrider.drafters.heads.config import HeadConfig
from outrider_torch.heads.vocabulary import ScoringHead


class BlockwiseHeads(ScoringHead):
    """A hidden layer shared by all heads, then ``heads`` outputs, each with a residual connection to the input.

    Positions are those of ``MedusaHeads``. The output layer is zero at first: training starts from the target's head.
    """

    def __init__(self, config: HeadConfig) -> None:
        super().__init__(config)
        d, k = config.hidden_size, config.heads
        self.inner = nn.Linear(d, k * d)
        self.outer = nn.Parameter(self.inner.weight.new_zeros(k, d, d))  # [head, out, in]

    def forward(self, hidden: Tensor) -> Tensor:
        """``hidden``: float [..., d] after the final norm. Returns [heads, ..., d], ready for the LM head."""
        inner = F.relu(self.inner(hidden)).unflatten(-1, (self.config.heads, -1))  # [..., k, d]
        flat = inner.flatten(0, -3).transpose(0, 1)  # [k, n, d]
        out = flat @ self.outer.to(flat.dtype).transpose(1, 2)
        added: Tensor = out.unflatten(1, hidden.shape[:-1])
        return hidden + added
