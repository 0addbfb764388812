"""What computes a decoder layer on torch: ``TorchBackend``."""

from __future__ import annotations

from outrider.kernels.backends.base import Backend, Dimensions, LayerForward, LayerWeights, unfused_layer
from outrider.kernels.backends.torch_backend import TorchBackend

__all__ = ["Backend", "Dimensions", "LayerForward", "LayerWeights", "TorchBackend", "unfused_layer"]
