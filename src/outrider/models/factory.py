"""Which implementation runs a model: the native library on CPUs, torch on GPUs and where there is no library."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from outrider.config.engine import DTypeName, Implementation, KVCacheDType
from outrider.errors import ConfigError
from outrider.kernels.native.library import library
from outrider.kernels.native.stored import StoredTensor
from outrider.kernels.native.weights import Target
from outrider.kernels.processor import has_bf16_instructions
from outrider.models.base import LoadedModel
from outrider.models.config import ModelConfig
from outrider.models.encoder_decoder import EncoderDecoderConfig, EncoderDecoderModel
from outrider.models.llama import LlamaModel
from outrider.models.native_llama import NativeLlamaModel
from outrider.models.shard import Shard

_QUANTISED = ("q8_0", "q4_0", "q4_1")
_BY_TORCH: dict[DTypeName, torch.dtype] = {"bfloat16": torch.bfloat16, "float32": torch.float32}


def make_model(
    config: ModelConfig,
    weights: Mapping[str, Tensor],
    *,
    stored: Mapping[str, StoredTensor] | None = None,
    dtype: DTypeName = "auto",
    kv_cache_dtype: KVCacheDType = "auto",
    device: torch.device | str = "cpu",
    fixed_shapes: bool | None = None,
    shard: Shard | None = None,
    implementation: Implementation = "auto",
) -> LoadedModel:
    """A model of the Llama family on ``device``.

    Args:
        weights: by their canonical names, read one by one so that a mapping may load lazily.
        stored: the same as their file holds them.
        dtype: ``auto`` is what the file holds (on a CPU; float32 and float16 matrices become bfloat16), and is
            bfloat16 on a GPU.
        kv_cache_dtype: of keys and values; ``auto`` is bfloat16, or float32 if ``dtype`` is, and on torch the dtype.
        fixed_shapes: as in ``LlamaModel``.
        shard: this process's share of a model that the native library runs; None: all of it.
        implementation: ``native`` or ``torch`` to have no other.

    Raises:
        ConfigError: a dtype is not available there.
        ModelFormatError: weights are damaged.
    """
    device = torch.device(device)
    if dtype == "int8":
        dtype = "q8_0"
    if implementation != "torch" and device.type == "cpu" and not fixed_shapes and library() is not None:
        target: Target | None = None if dtype == "auto" else dtype
        given = weights if stored is None else stored
        return NativeLlamaModel(config, given, target=target, kv_cache_dtype=kv_cache_dtype, shard=shard)
    where = f"not on {device}" if device.type != "cpu" else "and there is none: install a C compiler"
    if implementation == "torch" and device.type == "cpu":
        where = "not implementation='torch'"
    elif implementation == "native":
        raise ConfigError(f"implementation='native' needs the native library of the CPU, {where}, or use auto")
    held = torch_dtype(dtype, kv_cache_dtype, device, where)
    return LlamaModel(config, weights, dtype=held, device=device, fixed_shapes=fixed_shapes)


def torch_dtype(dtype: DTypeName, kv_cache_dtype: KVCacheDType, device: torch.device, where: str) -> torch.dtype:
    """What a model that runs on torch holds weights, keys and values in.

    Raises ``ConfigError`` for what only the native library does; ``where`` says why it does not.
    """
    if dtype in ("int8", *_QUANTISED):
        raise ConfigError(f"dtype={dtype!r} needs the native library of the CPU, {where}, or use bfloat16")
    if dtype == "auto":
        dtype = "bfloat16" if device.type == "cuda" or has_bf16_instructions() else "float32"
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
