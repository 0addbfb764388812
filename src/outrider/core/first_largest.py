"""The greedy choice of every row of a forward pass, found in one call."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from outrider.core import native


class FirstLargest:
    """Where each row of logits has its first largest entry, and which: of all rows, when one is asked for."""

    def __init__(self, logits: Tensor, vocab_size: int | None = None) -> None:
        """``logits``: any float type [rows, vocab]; ``vocab_size``: columns from there on are padding; None: none."""
        self._logits, self._width = logits, logits.shape[1] if vocab_size is None else vocab_size

    def __getitem__(self, row: int) -> tuple[int, float]:
        return self._found[row]

    @cached_property
    def _found(self) -> list[tuple[int, float]]:
        rows = self._logits
        if rows.dtype is not torch.float32 or not rows.is_cpu:
            rows = rows.to("cpu", torch.float32)
        sampler = native.sampler()
        if sampler is not None:
            return sampler.first_largest(rows, self._width)
        array = rows[:, : self._width].numpy()
        tokens = array.argmax(axis=1)  # a NaN counts as the largest
        return list(zip(tokens.tolist(), array[range(len(array)), tokens].tolist(), strict=True))
