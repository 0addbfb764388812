"""What all requests of a forward pass want of its logits, found in one call: greedy choices, and rows on the CPU."""

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

    def on_cpu(self, row: int) -> Tensor:
        """A row of logits: float32 [vocab] on the CPU; do not modify. A GPU's come over together, as each waits."""
        return self._logits[row].float() if self._logits.is_cpu else self._copied[row]

    @cached_property
    def _copied(self) -> Tensor:
        pinned = self._logits.device.type == "cuda"
        host = torch.empty(self._logits.shape, dtype=torch.float32, pin_memory=pinned)
        return host.copy_(self._logits.float())

    @cached_property
    def _found(self) -> list[tuple[int, float]]:
        rows = self._logits
        if not rows.is_cpu:  # torch's ``max`` finds the first of equals there too, and takes a NaN for the largest
            best = rows[:, : self._width].float().max(dim=1)
            return list(zip(best.indices.tolist(), best.values.tolist(), strict=True))
        rows = rows.float()
        sampler = native.sampler()
        if sampler is not None:
            return sampler.first_largest(rows, self._width)
        array = rows[:, : self._width].numpy()
        tokens = array.argmax(axis=1)  # a NaN counts as the largest
        return list(zip(tokens.tolist(), array[range(len(array)), tokens].tolist(), strict=True))
