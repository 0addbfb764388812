"""RMS normalisation (Zhang & Sennrich 2019) by the fastest kernel of the device, and layer normalisation."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F


class Norm(Protocol):
    """Norms the last dimension, each row by itself."""

    def __call__(self, x: Tensor) -> Tensor: ...


class RMSNorm:
    """``y = x / sqrt(mean(x²) + eps) * weight`` over the last dimension, each row by itself.

    On a CPU torch composes ``rms_norm`` of a dozen small operations, but has a fused ``layer_norm``. The layer norm
    of (x, -x), whose mean is zero and whose variance is the mean square of x, begins with the RMS norm of x.
    """

    def __init__(self, weight: Tensor, eps: float) -> None:
        """weight: [d]."""
        self.weight, self.eps = weight, eps
        self._twice = torch.cat([weight, weight]) if weight.device.type == "cpu" else None

    def __call__(self, x: Tensor) -> Tensor:
        """x: [..., d]."""
        d = self.weight.shape[0]
        if self._twice is None:
            return F.rms_norm(x, (d,), self.weight, self.eps)
        return F.layer_norm(torch.cat([x, -x], dim=-1), (2 * d,), self._twice, None, self.eps)[..., :d]


class LayerNorm:
    """``y = (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias`` (Ba et al. 2016), each row by itself."""

    def __init__(self, weight: Tensor, bias: Tensor, eps: float) -> None:
        """weight, bias: [d]."""
        self.weight, self.bias, self.eps = weight, bias, eps

    def __call__(self, x: Tensor) -> Tensor:
        """x: [..., d]."""
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)
