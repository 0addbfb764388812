"""Which implementation runs a model: the native library on CPUs, torch on GPUs and where there is no library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import cast

import torch
from torch import Tensor

from outrider.config import DTypeName
from outrider.errors import ConfigError
from outrider.kernels.native.library import library
from outrider.kernels.native.stored import StoredTensor
from outrider.kernels.native.weights import Target
from outrider.kernels.processor import has_bf16_instructions
from outrider.models.base import LoadedModel
from outrider.models.config import ModelConfig
from outrider.models.llama import LlamaModel
from outrider.models.native_llama import NativeLlamaModel, Stored

_QUANTISED = ("q8_0", "q4_0", "q4_1")
_BY_TORCH: dict[DTypeName, torch.dtype] = {"bfloat16": torch.bfloat16, "float32": torch.float32}


def make_model(
    config: ModelConfig,
    weights: Stored,
    *,
    dtype: DTypeName = "auto",
    device: torch.device | str = "cpu",
    fixed_shapes: bool | None = None,
) -> LoadedModel:
    """A model of the Llama family on ``device``.

    Args:
        weights: by their canonical names, as a file holds them or as torch tensors.
        dtype: ``auto`` keeps what a file holds (on a CPU; float32 and float16 matrices become bfloat16), and is
            bfloat16 on a GPU.
        fixed_shapes: as in ``LlamaModel``.

    Raises:
        ConfigError: the dtype is not available there.
        ModelFormatError: weights are damaged.
    """
    device, dtype = torch.device(device), "q8_0" if dtype == "int8" else dtype
    if device.type == "cpu" and not fixed_shapes and library() is not None:
        return NativeLlamaModel(config, weights, target=_target(weights, dtype))
    if dtype in _QUANTISED:
        where = f"not on {device}" if device.type != "cpu" else "and there is none: install a C compiler"
        raise ConfigError(f"dtype={dtype!r} needs the native library of the CPU, {where}, or use bfloat16")
    if dtype == "auto":
        dtype = "bfloat16" if device.type == "cuda" or has_bf16_instructions() else "float32"
    return LlamaModel(config, _Numbers(weights), dtype=_BY_TORCH[dtype], device=device, fixed_shapes=fixed_shapes)


def _target(weights: Stored, dtype: DTypeName) -> Target | None:
    if dtype != "auto":
        return cast(Target, dtype)
    embedding = weights["model.embed_tokens.weight"]
    plain = not isinstance(embedding, StoredTensor) or embedding.type in ("F32", "F16", "BF16")
    return "bfloat16" if plain else None


class _Numbers(Mapping[str, Tensor]):
    """Weights as torch tensors."""

    def __init__(self, weights: Stored) -> None:
        self._weights = weights

    def __getitem__(self, name: str) -> Tensor:
        weight = self._weights[name]
        return weight.numbers() if isinstance(weight, StoredTensor) else weight

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)
