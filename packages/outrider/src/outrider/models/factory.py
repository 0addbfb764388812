"""Chooses a model's implementation: the native library on CPUs, torch on GPUs and without the library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outrider.config.engine import DTypeName, Implementation, KVCacheDType
from outrider.errors import ConfigError
from outrider.extensions import extension
from outrider.models.base import LoadedModel
from outrider.models.config import ModelConfig
from outrider.models.native_llama import NativeLlamaModel
from outrider.models.shard import Shard
from outrider.native.identity import PackedPlace
from outrider.native.library import library
from outrider.native.weights import Target


def make_model(
    config: ModelConfig,
    weights: Mapping[str, Any],
    *,
    quantised: bool = False,
    dtype: DTypeName = "auto",
    kv_cache_dtype: KVCacheDType = "auto",
    device: Any = "cpu",
    fixed_shapes: bool | None = None,
    shard: Shard | None = None,
    implementation: Implementation = "auto",
    place: PackedPlace | None = None,
) -> LoadedModel:
    """A model of the Llama family on ``device``.

    Args:
        weights: by canonical names: ``StoredTensor``, arrays, or tensors of torch.
        quantised: whether the weights come from a GGUF file; torch converts these to bfloat16.
        dtype: type of the weights. ``auto``: on a CPU the file's (float32 and float16 matrices become bfloat16), on a
            GPU bfloat16.
        kv_cache_dtype: type of keys and values. ``auto``: bfloat16, or float32 if ``dtype`` is; with torch, ``dtype``.
        fixed_shapes: as in ``LlamaModel``.
        shard: this process's share of a model that the native library runs; None: all of it.
        implementation: ``native`` and ``torch`` allow no other.
        place: as in ``NativeLlamaModel``.

    Raises:
        ConfigError: the dtype or the implementation is not available on this device.
        ModelFormatError: weights are damaged.
    """
    on_cpu = str(device) == "cpu"
    if dtype == "int8":
        dtype = "q8_0"
    if implementation != "torch" and on_cpu and not fixed_shapes and library() is not None:
        target: Target | None = None if dtype == "auto" else dtype
        return NativeLlamaModel(config, weights, target=target, kv_cache_dtype=kv_cache_dtype, shard=shard, place=place)
    where = f"not on {device}" if not on_cpu else "and there is none: install a C compiler"
    if implementation == "torch" and on_cpu:
        where = "not implementation='torch'"
    elif implementation == "native":
        raise ConfigError(f"implementation='native' needs the native library of the CPU, {where}, or use auto")
    asked = f"the torch backend, which runs {config.family} {_reason(implementation, on_cpu)},"
    backend = extension("backends", "torch", asked)
    made: LoadedModel = backend.make_torch_model(
        config, weights, quantised=quantised, dtype=dtype, kv_cache_dtype=kv_cache_dtype, device=device,
        fixed_shapes=fixed_shapes, why=where,
    )  # fmt: skip
    return made


def _reason(implementation: Implementation, on_cpu: bool) -> str:
    if implementation == "torch":
        return "with implementation='torch'"
    return "without the native library (which needs a C compiler)" if on_cpu else "on this device"
