"""The backend that computes decoder layers on torch: ``TorchBackend``."""

from __future__ import annotations

from outrider_torch.kernels.backends.base import (
    Backend,
    Dimensions,
    ExpertWeights,
    LayerForward,
    LayerWeights,
    MLPWeights,
    unfused_layer,
)
from outrider_torch.kernels.backends.torch_backend import TorchBackend

__all__ = [
    "Backend",
    "Dimensions",
    "ExpertWeights",
    "LayerForward",
    "LayerWeights",
    "MLPWeights",
    "TorchBackend",
    "unfused_layer",
]
