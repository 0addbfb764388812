"""Logits over a part of the target's vocabulary."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from outrider.verify.arrays import Floats

FAR = -1e4
"""The logit of tokens outside the draft vocabulary: never drawn unless the options rule out all other tokens."""


@dataclass(frozen=True)
class DraftVocabulary:
    """The target's tokens that a source scores.

    ::

        columns        17   204   911        logits    1.5   0.2   3.0
        target's  0 ... 17 ... 204 ...       full      FAR ... 1.5 ... 0.2 ...
    """

    columns: NDArray[np.int64]  # [m], without duplicates
    size: int  # columns of the target's head

    @cached_property
    def largest(self) -> int:
        """The largest token id."""
        return int(self.columns.max())

    def full(self, logits: Floats) -> Floats:
        """Logits over the target's vocabulary: [n, m] -> float32 [n, size]."""
        everything = np.full((len(logits), self.size), FAR, np.float32)
        everything[:, self.columns] = logits
        return everything
