"""PaSS: look-ahead embeddings that make the target itself guess ahead (Monea et al. 2023, section 3)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from outrider.drafters.heads.config import HeadConfig


class LookaheadEmbeddings(nn.Module):
    """``heads`` input embeddings [LA]_1 ... [LA]_T, appended behind the last token.

    Where the target's output at the last token, t, predicts token t + 1, its output at [LA]_i predicts t + 1 + i.
    [LA]_i stands at position t + i and attends to all positions before it.
    """

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.config = config
        self.embeddings = nn.Parameter(0.02 * torch.randn(config.heads, config.hidden_size))  # [T, d]

    @property
    def num_weights(self) -> int:
        return self.embeddings.numel()

    def forward(self) -> Tensor:
        """The embeddings, float [T, d]."""
        return self.embeddings
