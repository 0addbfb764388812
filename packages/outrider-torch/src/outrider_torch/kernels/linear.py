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


class HeadLinear:
    """A linear layer for each head: x: [n, heads, in] -> [n, heads, out], with the promise of ``TorchLinear``."""

    def __init__(self, weight: Tensor) -> None:
        """``weight``: [heads, out, in] on its device and in its dtype."""
        self._weight = weight.transpose(1, 2).contiguous()

    def __call__(self, x: Tensor) -> Tensor:
        if x.is_cuda:
            return torch.bmm(x.transpose(0, 1), self._weight).transpose(0, 1)
        n = x.shape[0]
        padded = F.pad(x, (0, 0, 0, 0, 0, -n % _ROWS)).contiguous()
        parts = [torch.bmm(part.transpose(0, 1).contiguous(), self._weight) for part in padded.split(_ROWS)]
        return torch.cat(parts, dim=1)[:, :n].transpose(0, 1)
