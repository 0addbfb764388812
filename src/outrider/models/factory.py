"""Which implementation runs a model: the native library on CPUs, torch on GPUs and where there is no library."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from outrider.config import DTypeName
from outrider.errors import ConfigError
from outrider.kernels.native.library import library
from outrider.kernels.native.stored import StoredTensor
from outrider.kernels.processor import has_bf16_instructions
from outrider.models.base import LoadedModel
from outrider.models.config import ModelConfig
from outrider.models.llama import LlamaModel
from outrider.models.native_llama import NativeLlamaModel

_EMBEDDING = "model.embed_tokens.weight"
_FLOATS = ("F32", "F16", "BF16")
_QUANTISED = ("q8_0", "q4_0", "q4_1")
_BY_TORCH: dict[DTypeName, torch.dtype] = {"bfloat16": torch.bfloat16, "float32": torch.float32}


def make_model(
    config: ModelConfig,
    weights: Mapping[str, Tensor],
    *,
    stored: Mapping[str, StoredTensor] | None = None,
    dtype: DTypeName = "auto",
    device: torch.device | str = "cpu",
    fixed_shapes: bool | None = None,
) -> LoadedModel:
    """A model of the Llama family on ``device``.

    Args:
        weights: by their canonical names, read one by one so that a mapping may load lazily.
        stored: the same as their file holds them.
        dtype: ``auto`` is what the file holds (on a CPU; float32 and float16 matrices become bfloat16), and is
            bfloat16 on a GPU.
        fixed_shapes: as in ``LlamaModel``.

    Raises:
        ConfigError: the dtype is not available there.
        ModelFormatError: weights are damaged.
    """
    device = torch.device(device)
    if dtype == "int8":
        dtype = "q8_0"
    if device.type == "cpu" and not fixed_shapes and library() is not None:
        if dtype == "auto" and stored is not None and stored[_EMBEDDING].type not in _FLOATS:
            return NativeLlamaModel(config, stored)
        return NativeLlamaModel(config, weights, target="bfloat16" if dtype == "auto" else dtype)
    if dtype in _QUANTISED:
        where = f"not on {device}" if device.type != "cpu" else "and there is none: install a C compiler"
        raise ConfigError(f"dtype={dtype!r} needs the native library of the CPU, {where}, or use bfloat16")
    if dtype == "auto":
        dtype = "bfloat16" if device.type == "cuda" or has_bf16_instructions() else "float32"
    return LlamaModel(config, weights, dtype=_BY_TORCH[dtype], device=device, fixed_shapes=fixed_shapes)
