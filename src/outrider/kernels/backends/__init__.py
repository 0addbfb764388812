"""The arithmetic of a layer: composed of torch operations, or compiled on this machine.

The two round at different places, so a model keeps to the one it was built with. In either, a row's bits do not
depend on its company.
"""

from __future__ import annotations

import torch

from outrider.kernels.backends.base import Arithmetic, Dimensions, Layer, Through, in_parts
from outrider.kernels.backends.native_backend import Compiled
from outrider.kernels.backends.torch_backend import Composed
from outrider.kernels.native import kernels

__all__ = ["Arithmetic", "Compiled", "Composed", "Dimensions", "Layer", "Through", "in_parts", "make_arithmetic"]


def make_arithmetic(dimensions: Dimensions, dtype: torch.dtype, device: torch.device) -> Arithmetic:
    """The fastest there is for models of this dtype on this device."""
    library = kernels() if device.type == "cpu" and dtype == torch.bfloat16 else None
    return Composed(dimensions) if library is None else Compiled(dimensions, library)
