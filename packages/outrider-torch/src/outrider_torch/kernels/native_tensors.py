"""Torch tensors for the native library: for trained heads and models that torch computes in part."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from outrider.errors import ModelFormatError
from outrider.native.context import NativeContext
from outrider.native.stored import StoredTensor
from outrider.native.weights import NativeWeight, Target, pack

_TYPES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


class TensorWeight:
    """A packed matrix with CPU tensors as input and output."""

    def __init__(self, weight: NativeWeight) -> None:
        self.weight, self.struct = weight, weight.struct
        self.outputs, self.inputs, self.nbytes = weight.outputs, weight.inputs, weight.nbytes

    def rows(self, ids: Tensor) -> Tensor:
        """As ``NativeWeight.rows``."""
        return torch.from_numpy(self.weight.rows(ids.to(torch.int64).numpy()))

    def __call__(self, x: Tensor) -> Tensor:
        """``x W' + bias``: float [n, inputs] -> float32 [n, outputs]."""
        return torch.from_numpy(self.weight(x.detach().to(torch.float32).numpy()))


def stored_tensor(tensor: Tensor) -> StoredTensor:
    """A float tensor in a file's storage format. Raises ``ModelFormatError`` for another dtype."""
    tensor = tensor.detach().to("cpu").contiguous()
    if tensor.dtype not in _TYPES:
        raise ModelFormatError(f"a tensor of {tensor.dtype} cannot be packed: use float32, float16 or bfloat16")
    return StoredTensor(_TYPES[tensor.dtype], tuple(tensor.shape), tensor.view(torch.uint8).numpy().reshape(-1))


def pack_tensor(
    tensor: Tensor, target: Target | None = None, *, bias: Tensor | None = None, context: NativeContext | None = None
) -> TensorWeight:
    """Pack a float tensor [outputs, inputs]. Arguments and errors as of ``pack``."""
    own = None if bias is None else bias.detach().to("cpu", torch.float32).numpy()
    return TensorWeight(pack(stored_tensor(tensor), bias=own, target=target, context=context))


def as_tensors(given: Any) -> Any:
    """A model's output with its arrays as tensors that share their memory."""
    return given if isinstance(given, Tensor) else torch.from_numpy(given)
