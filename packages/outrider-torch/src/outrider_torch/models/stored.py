"""Weights as torch tensors, read at access: for models that torch computes, and for training."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType, dequantize
from numpy.typing import NDArray
from torch import Tensor

from outrider.errors import ModelFormatError
from outrider.native.stored import StoredTensor
from outrider.weights.files.checkpoint import Checkpoint
from outrider_torch.kernels.native_tensors import as_tensors

_ROWS_AT_A_TIME = 1 << 22  # values dequantised at once: float32 pieces of 16 MB stay in cache and bound memory
_FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_STORED = {"F32": np.float32, "F16": np.float16}  # dequantize takes these types as they are, the others as bytes


class StoredTensors(Mapping[str, Tensor]):
    """Tensors by name, read from mapped files; arrays and tensors are returned unchanged."""

    def __init__(self, stored: Mapping[str, Any], *, quantised: bool = False) -> None:
        """``quantised``: the tensors are a GGUF file's; they are then bfloat16, dequantised from blocks.

        Floats of recurrent layers stay: their errors would add up from row to row.
        """
        self._stored, self._quantised = stored, quantised

    def __getitem__(self, name: str) -> Tensor:
        stored = self._stored[name]
        if not isinstance(stored, StoredTensor):
            return as_tensors(stored)  # type: ignore[no-any-return]
        if stored.negative_exponential:
            return torch.from_numpy(stored.numbers())
        mapped = stored.type in _FLOATS and (".linear_attn." in name or not self._quantised)
        values = _mapped(stored) if mapped else self._dequantised(name, stored)
        if (self._quantised or not mapped) and not torch.isfinite(values).all():
            raise ModelFormatError(f"{stored.file} is damaged: tensor {name} holds NaN or infinity; download it again")
        if stored.order is not None:
            values = values[torch.from_numpy(stored.order)]
        if stored.swapped:
            values = values.unflatten(0, (stored.swapped, -1)).transpose(1, 2).flatten(0, 1)
        return values.float() + stored.plus if stored.plus else values

    def _dequantised(self, name: str, stored: StoredTensor) -> Tensor:
        try:
            return _dequantise(stored)
        except NotImplementedError:
            raise ModelFormatError(
                f"{stored.file}: tensor {name} has type {stored.type}, which gguf cannot dequantise: "
                "use another quantisation"
            ) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)


def torch_tensors(checkpoint: Checkpoint) -> StoredTensors:
    """The checkpoint's weights by their canonical names, read at access.

    Floats are mapped; other types are dequantised to bfloat16.
    """
    return StoredTensors(checkpoint.stored, quantised=checkpoint.quantised)


def _mapped(stored: StoredTensor) -> Tensor:
    """A tensor that shares the file's memory, and must not be written to.

    A writable private mapping counts as memory: the system refuses one larger than its memory.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        data = torch.from_numpy(stored.data)
    values = data.view(_FLOATS[stored.type])
    return values.view(stored.shape[::-1]).T if stored.transposed else values.view(stored.shape)


def _dequantise(stored: StoredTensor) -> Tensor:
    columns = stored.shape[-1]
    data = stored.data if stored.scales is None else _with_scales(stored.data, stored.scales)
    rows = data.reshape(math.prod(stored.shape) // columns, -1)  # uint8 [rows, bytes per row]
    out = torch.empty(len(rows), columns, dtype=torch.bfloat16)
    step = max(1, _ROWS_AT_A_TIME // columns)
    for at in range(0, len(rows), step):
        piece = rows[at : at + step].copy()
        with np.errstate(all="ignore"):  # the tensor's reader checks for damaged numbers
            values = dequantize(piece.view(_STORED.get(stored.type, np.uint8)), GGMLQuantizationType[stored.type])
        out[at : at + step] = torch.from_numpy(values)
    return out.view(stored.shape)


def _with_scales(data: NDArray[np.uint8], scales: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Blocks of MXFP4 whose scales lie apart, as GGUF has them: the scale, and codes 16 apart in a byte."""
    codes = np.stack([data & 15, data >> 4], axis=-1).reshape(-1, 32)
    return np.concatenate([scales.reshape(-1, 1), codes[:, :16] | codes[:, 16:] << 4], axis=1)
