"""The draft vocabulary: the subset of target tokens that a head scores, for a small LM head (EAGLE-3, section 3)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from outrider.drafters.heads.config import HeadConfig
from outrider.drafters.heads.weights import check_draft_ids


class ScoringHead(nn.Module):
    """Base of heads that score tokens: the map of a draft vocabulary, and optionally an LM head of its own.

    ``d2t``: int64 [draft_vocab_size], the target id of each draft token, ascending; None without a draft vocabulary.
    ``lm_head``: [scored, d], or None where the target's own rows are used.
    """

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.config = config
        first = None if config.draft_vocab_size is None else torch.arange(config.draft_vocab_size)
        self.register_buffer("d2t", first)
        self.lm_head = nn.Linear(config.hidden_size, config.scored, bias=False) if config.own_lm_head else None

    @property
    def num_weights(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())

    @property
    def draft_ids(self) -> Tensor | None:
        """``d2t``: int64 [draft_vocab_size], or None: all ids."""
        found = self.d2t
        return found if isinstance(found, Tensor) else None

    def set_draft_ids(self, ids: Tensor) -> None:
        """Take ``ids``: int64 [draft_vocab_size] as the draft vocabulary, or raise ``ModelFormatError``."""
        check_draft_ids(ids.cpu().numpy(), self.config)
        self.d2t = ids.clone()
