"""Linear layers on torch, for GPUs and as the reference."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

_ROWS = 16
"""Rows of every call on a CPU: a library picks its kernel by the shape, and another kernel adds in another order."""


class TorchLinear:
    """``y = x Wᵀ + b`` for x: [n, in], with y: [n, out].

    On a CPU, output row ``i`` depends on input row ``i`` alone, bit for bit.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """``weight``: [out, in] on its device and in its dtype."""
        self._weight, self._bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        if x.is_cuda:
            return F.linear(x, self._weight, self._bias)
        n = x.shape[0]
        padded = F.pad(x, (0, 0, 0, -n % _ROWS))
        return torch.cat([F.linear(part, self._weight, self._bias) for part in padded.split(_ROWS)])[:n]
