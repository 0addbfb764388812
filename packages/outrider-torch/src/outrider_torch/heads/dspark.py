"""DSpark's heads on a masked block: the token before a row changes its scores (Cheng et al. 2026, arXiv 2607.05147).

::

    scores of row k  =  LM head(h_k)  +  after (gate * before[u])        u: the token before the one guessed
    confidence       =  sigmoid(w . [h_k, before[u]] + b)                gate: 1, or sigmoid(G [h_k, before[u]])
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from outrider.drafters.heads.config import HeadConfig
from outrider.drafters.heads.masked import DSpark
from outrider_torch.heads.diffusion import DiffusionHead


class MarkovHead(nn.Module):
    """Additions to scores by the token before: a low-rank table of pairs of tokens."""

    def __init__(self, config: HeadConfig, own: DSpark) -> None:
        super().__init__()
        self.before = nn.Embedding(config.vocab_size, own.rank)
        self.after = nn.Linear(own.rank, config.scored, bias=False)
        self.gate = nn.Linear(config.hidden_size + own.rank, own.rank) if own.gated else None

    def forward(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        """hidden: [n, d]; tokens: int64 [n], those before -> [n, scored]."""
        seen = self.before(tokens)
        if self.gate is not None:
            seen = torch.sigmoid(self.gate(torch.cat([hidden, seen], -1))) * seen
        return self.after(seen)  # type: ignore[no-any-return]


class ConfidenceHead(nn.Module):
    """Predicts whether the target accepts a row's token."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, inputs))
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, read: Tensor) -> Tensor:
        """read: [n, inputs] -> log-probabilities, float32 [n]."""
        return F.logsigmoid(F.linear(read.float(), self.weight.float(), self.bias.float())).squeeze(-1)


class DSparkHead(DiffusionHead):
    """A head of kind "dspark"."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__(config)
        own = config.dspark
        assert own is not None
        self.markov = MarkovHead(config, own) if own.rank else None
        inputs = config.hidden_size + (own.rank if own.confidence_reads_token else 0)
        self.confidence = ConfidenceHead(inputs) if own.confidence else None
        self._reads_token = own.confidence_reads_token

    def sure(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        """Log of the probability that each row's token is accepted: float32 [n]. Requires a confidence head.

        hidden: [n, d], the rows' outputs; tokens: int64 [n], those before.
        """
        assert self.confidence is not None
        if not self._reads_token or self.markov is None:
            return self.confidence(hidden)  # type: ignore[no-any-return]
        return self.confidence(torch.cat([hidden, self.markov.before(tokens)], -1))  # type: ignore[no-any-return]
