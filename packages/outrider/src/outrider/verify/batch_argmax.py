"""The arg-max of a forward pass's logits, and their copy on the CPU, computed once for all requests."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.verify import native
from outrider.verify.arrays import Array, Floats, host
from outrider.verify.noise import largest


class BatchArgmax:
    """The token and value of each row's first largest logit; the first access computes all rows."""

    def __init__(self, logits: Array, vocab_size: int | None = None) -> None:
        """``logits``: any float type [rows, vocab]. ``vocab_size``: later columns are padding; None: no padding."""
        self._logits, self._width = logits, logits.shape[1] if vocab_size is None else vocab_size

    def __getitem__(self, row: int) -> tuple[int, float]:
        return self._found[row]

    def on_cpu(self, row: int) -> Floats:
        """A row of logits, float32 [vocab] on the CPU; do not modify. All rows are copied from a GPU at once."""
        array: Floats = self._host[row]
        return array

    def likeliest(self, first: int, rows: int, count: int) -> tuple[NDArray[np.int64], Floats]:
        """The ``count`` likeliest tokens of ``rows`` rows from ``first`` on, and their logits: [rows, count] each."""
        count = min(count, self._width)
        if not isinstance(self._logits, np.ndarray):  # on the device: only the results are copied
            tensor: Any = self._logits
            best = tensor[first : first + rows, : self._width].topk(count)
            return best.indices.cpu().numpy(), host(best.values)
        logits = self._host[first : first + rows, : self._width]
        tokens = np.zeros((rows, count), np.int64)
        values = np.full((rows, count), -np.inf, np.float32)  # stays -inf if fewer tokens are possible
        for row, own, scores in zip(logits, tokens, values, strict=True):
            found = largest(row, count)
            own[: len(found)], scores[: len(found)] = found, row[found]
        return tokens, values

    @property
    def _elsewhere(self) -> bool:
        """Whether the logits are on a device."""
        return not getattr(self._logits, "is_cpu", True)

    @cached_property
    def _host(self) -> Floats:
        """All rows as float32 on the CPU."""
        if not self._elsewhere:
            return host(self._logits)
        tensor: Any = self._logits
        floats = tensor.float()
        pinned = floats.new_empty(floats.shape, device="cpu", pin_memory=floats.is_cuda)
        array: Floats = pinned.copy_(floats).numpy()
        return array

    @cached_property
    def _found(self) -> list[tuple[int, float]]:
        if self._elsewhere:  # on a device torch's ``max`` gives the first of equal values, and NaN as the largest
            tensor: Any = self._logits
            best = tensor[:, : self._width].float().max(dim=1)
            return list(zip(best.indices.tolist(), best.values.tolist(), strict=True))
        sampler = native.sampler()
        if sampler is not None:
            return sampler.first_largest(self._host, self._width)
        array = self._host[:, : self._width]
        tokens = array.argmax(axis=1)  # NaN counts as the largest
        return list(zip(tokens.tolist(), array[range(len(array)), tokens].tolist(), strict=True))
