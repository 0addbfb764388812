"""Choice of the kernels for a model with an encoder."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from outrider.config.engine import DTypeName, KVCacheDType
from outrider.errors import ConfigError
from outrider.native.library import library
from outrider.native.weights import Target
from outrider_multimodal.encoder_decoder.config import EncoderDecoderConfig
from outrider_multimodal.encoder_decoder.model import EncoderDecoderModel
from outrider_torch.kernels.torch_processor import use_chosen_threads

_QUANTISED = ("q8_0", "q4_0", "q4_1")


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
        ConfigError: a dtype is not available on ``device``.
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
