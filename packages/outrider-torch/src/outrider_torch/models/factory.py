"""Models that torch computes: on GPUs, and on CPUs without the native library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from outrider.config.engine import DTypeName, KVCacheDType
from outrider.errors import ConfigError
from outrider.models.config import ModelConfig
from outrider_torch.kernels.torch_processor import has_bf16_instructions, use_chosen_threads
from outrider_torch.models.llama import LlamaModel
from outrider_torch.models.stored import StoredTensors

_QUANTISED = ("q8_0", "q4_0", "q4_1")
_BY_TORCH: dict[DTypeName, torch.dtype] = {"bfloat16": torch.bfloat16, "float32": torch.float32}


def make_torch_model(
    config: ModelConfig,
    weights: Mapping[str, Any],
    *,
    quantised: bool,
    dtype: DTypeName,
    kv_cache_dtype: KVCacheDType,
    device: torch.device | str,
    fixed_shapes: bool | None,
    why: str,
) -> LlamaModel:
    """As ``make_model``. ``why``: the reason why the native library does not run the model."""
    if config.gemma4 is not None:
        raise ConfigError(
            f"{config.family} has heads by layer, which only the native library computes, {why}: use the CPU, or "
            "implementation='transformers'"
        )
    device = torch.device(device)
    use_chosen_threads()
    held = torch_dtype(dtype, kv_cache_dtype, device, why)
    tensors = StoredTensors(weights, quantised=quantised)
    model = LlamaModel(config, tensors, dtype=held, device=device, fixed_shapes=fixed_shapes)
    model.draft_head = {name: stored for name, stored in weights.items() if name.startswith("mtp.")}
    return model


def torch_dtype(dtype: DTypeName, kv_cache_dtype: KVCacheDType, device: torch.device | str, where: str) -> torch.dtype:
    """The dtype of weights, keys and values of a model on torch.

    Raises ``ConfigError`` for dtypes of the native library alone; ``where``: the reason why it does not run.
    """
    if dtype in ("int8", *_QUANTISED):
        raise ConfigError(f"dtype={dtype!r} needs the native library of the CPU, {where}, or use bfloat16")
    if dtype == "auto":
        dtype = "bfloat16" if torch.device(device).type == "cuda" or has_bf16_instructions() else "float32"
    if kv_cache_dtype not in ("auto", dtype):
        raise ConfigError(
            f"kv_cache_dtype={kv_cache_dtype!r} needs the native library of the CPU, {where}, or use auto, which is "
            f"{dtype} there"
        )
    return _BY_TORCH[dtype]
