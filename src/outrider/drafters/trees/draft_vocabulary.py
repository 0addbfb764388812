"""Logits over a part of the target's vocabulary."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

FAR = -1e4
"""The logit of tokens outside: never drawn unless the request's options rule out all others."""


@dataclass(frozen=True)
class DraftVocabulary:
    """Which of the target's tokens a source scores.

    ::

        ids            17   204   911        logits    1.5   0.2   3.0
        target's  0 ... 17 ... 204 ...       full      FAR ... 1.5 ... 0.2 ...
    """

    ids: Tensor  # int64 [m], ascending
    size: int  # columns of the target's head

    def full(self, logits: Tensor) -> Tensor:
        """[n, m] -> float32 [n, size]."""
        everything = torch.full((len(logits), self.size), FAR, dtype=torch.float32, device=logits.device)
        return everything.index_copy_(1, self.ids, logits.float())
