"""The backends that compute a decoder layer: ``TorchBackend`` by torch operations, ``NativeBackend`` by compiled C.

The two round at different places, so a model keeps to the one it was built with. In either, a row's bits do not
depend on the other rows of the batch.
"""

from __future__ import annotations

import torch

from outrider.kernels.backends.base import Backend, Dimensions, LayerForward, LayerWeights, unfused_layer
from outrider.kernels.backends.native_backend import NativeBackend
from outrider.kernels.backends.torch_backend import TorchBackend
from outrider.kernels.native import native_library

__all__ = [
    "Backend",
    "Dimensions",
    "LayerForward",
    "LayerWeights",
    "NativeBackend",
    "TorchBackend",
    "make_backend",
    "unfused_layer",
]


def make_backend(dimensions: Dimensions, dtype: torch.dtype, device: torch.device) -> Backend:
    """The fastest there is for models of this dtype on this device."""
    library = native_library() if device.type == "cpu" and dtype == torch.bfloat16 else None
    return TorchBackend(dimensions) if library is None else NativeBackend(dimensions, library)
