"""Models that torch computes: on GPUs, on CPUs without the native library, and those with an encoder."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from outrider.config.engine import DTypeName, KVCacheDType
from outrider.errors import ConfigError
from outrider.models.config import ModelConfig
from outrider.native.library import library
from outrider.native.weights import Target
from outrider_multimodal.encoder_decoder import EncoderDecoderConfig
from outrider_multimodal.encoder_decoder.model import EncoderDecoderModel
from outrider_torch.kernels.torch_processor import has_bf16_instructions, use_chosen_threads
from outrider_torch.models.llama import LlamaModel

__all__ = ["make_encoder_decoder", "make_torch_model", "torch_dtype"]

_QUANTISED = ("q8_0", "q4_0", "q4_1")
_BY_TORCH: dict[DTypeName, torch.dtype] = {"bfloat16": torch.bfloat16, "float32": torch.float32}


def make_torch_model(
    config: ModelConfig,
    weights: Mapping[str, Tensor],
    *,
    dtype: DTypeName,
    kv_cache_dtype: KVCacheDType,
    device: torch.device | str,
    fixed_shapes: bool | None,
    why: str,
) -> LlamaModel:
    """As ``make_model``; ``why`` says what keeps the native library from running it."""
    device = torch.device(device)
    use_chosen_threads()
    held = torch_dtype(dtype, kv_cache_dtype, device, why)
    return LlamaModel(config, weights, dtype=held, device=device, fixed_shapes=fixed_shapes)


def torch_dtype(dtype: DTypeName, kv_cache_dtype: KVCacheDType, device: torch.device | str, where: str) -> torch.dtype:
    """What a model that runs on torch holds weights, keys and values in.

    Raises ``ConfigError`` for what only the native library does; ``where`` says why it does not.
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


def make_encoder_decoder(
    config: EncoderDecoderConfig,
    weights: Mapping[str, Tensor],
    *,
    dtype: DTypeName = "auto",
    kv_cache_dtype: KVCacheDType = "auto",
    device: torch.device | str = "cpu",
) -> EncoderDecoderModel:
    """A model with an encoder. On a CPU the native library holds the decoder's matrices; the rest is float32.

    Args:
        dtype: of the decoder's matrices; ``auto`` is bfloat16.

    Raises:
        ConfigError: a dtype is not available there.
    """
    use_chosen_threads()
    device = torch.device(device)
    target: Target = "q8_0" if dtype == "int8" else "bfloat16" if dtype == "auto" else dtype
    if device.type == "cpu" and library() is not None:
        if kv_cache_dtype not in ("auto", "float32"):
            raise ConfigError(f"kv_cache_dtype={kv_cache_dtype!r} is not for {config.family}: use auto or float32")
        return EncoderDecoderModel(config, weights, native=target)
    if target in _QUANTISED:
        raise ConfigError(f"dtype={dtype!r} needs the native library of the CPU: use bfloat16 or float32")
    torch_dtype = torch.bfloat16 if target == "bfloat16" and device.type == "cuda" else torch.float32
    if kv_cache_dtype not in ("auto", str(torch_dtype).removeprefix("torch.")):
        raise ConfigError(f"kv_cache_dtype={kv_cache_dtype!r} is not for {config.family}: use auto")
    return EncoderDecoderModel(config, weights, dtype=torch_dtype, device=device)
