"""Logits over a part of the target's vocabulary."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outrider.heads.vocabulary import ScoringHead
from outrider.models.base import HeadTarget

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

    @cached_property
    def columns(self) -> NDArray[np.int64]:
        """``ids`` on the CPU."""
        found: NDArray[np.int64] = self.ids.cpu().numpy()
        return found

    def full(self, logits: Tensor) -> Tensor:
        """[n, m] -> float32 [n, size]."""
        everything = torch.full((len(logits), self.size), FAR, dtype=torch.float32, device=logits.device)
        return everything.index_copy_(1, self.ids, logits.float())


def draft_vocabulary(head: ScoringHead, target: HeadTarget) -> DraftVocabulary | None:
    """What ``head`` scores of its target's tokens; None: all of them."""
    if head.draft_ids is None:
        return None
    return DraftVocabulary(head.draft_ids.to(target.device), target.config.vocab_size)
