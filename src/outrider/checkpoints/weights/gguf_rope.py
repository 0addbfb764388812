"""Rotary position in GGUF files, as the keys of ``config.json``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from outrider.checkpoints.weights.gguf_header import GGUFHeader, GGUFTensor
from outrider.errors import ModelFormatError
from outrider.utils.json_files import shown

# What Llama 3.1, 3.2 and 3.3 use; GGUF files keep the resulting divisors only, so they are recognised, not read.
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


ROPE_READ = (
    *("rope.dimension_count", "rope.freq_base", "rope.scale_linear", "rope.scaling.type", "rope.scaling.factor"),
    *("rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor", "rope.scaling.yarn_ext_factor"),
)
ROPE_HARMLESS = (  # llama.cpp reads the first four for yarn alone, and the last for nothing
    *("rope.scaling.original_context_length", "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow"),
    *("rope.scaling.yarn_log_multiplier", "rope.scaling.finetuned"),
)


def read_gguf_rope(arch: str, header: GGUFHeader, path: Path, head_dim: object) -> dict[str, Any]:
    """``rope_theta`` and ``rope_scaling`` of a file. Raises ``ModelFormatError`` for scalings not implemented.

    As in llama.cpp, a scaling without a type is linear, and type none has no factor.
    """
    get = header.scalar
    theta = get(f"{arch}.rope.freq_base", 10000.0)
    kind = get(f"{arch}.rope.scaling.type", "linear")
    if kind not in ("none", "linear"):
        raise ModelFormatError(f"rope scaling {shown(kind)} is not supported: use linear, Llama 3 or none")
    for key, off in (("attn_factor", 1.0), ("yarn_attn_factor", 1.0), ("yarn_ext_factor", 0.0)):
        value = get(f"{arch}.rope.scaling.{key}", off)
        if value != off and not (key == "yarn_ext_factor" and isinstance(value, float) and value < 0):  # by type
            raise ModelFormatError(f"{arch}.rope.scaling.{key}={shown(value)} is not supported: only {off} is")
    factor = get(f"{arch}.rope.scaling.factor", get(f"{arch}.rope.scale_linear"))
    linear = kind == "linear" and factor not in (0.0, 1.0, None)
    scaling = {"rope_type": "linear", "factor": factor} if linear else None
    tensor = header.tensors.get("rope_freqs.weight")
    if tensor is not None:
        llama3 = _recognise_llama3(_read_divisors(arch, tensor, path, head_dim), theta)
        if llama3 is not None and scaling is not None:
            raise ModelFormatError(
                f"linear scaling by {shown(factor)} together with rope_freqs.weight is not supported"
            )
        scaling = llama3 or scaling
    return {"rope_theta": theta, "rope_scaling": scaling}


def _read_divisors(arch: str, tensor: GGUFTensor, path: Path, head_dim: object) -> np.ndarray[Any, Any]:
    if arch != "llama":
        raise ModelFormatError(f"rope_freqs.weight belongs to no {arch} model: use the model's safetensors files")
    if tensor.type.name != "F32" or not isinstance(head_dim, int) or tensor.shape != (head_dim // 2,):
        raise ModelFormatError(
            f"rope_freqs.weight of type {tensor.type.name} and shape {list(tensor.shape)} is not a float32 divisor for "
            f"each of {shown(head_dim)} / 2 rotary pairs: download it again"
        )
    return np.fromfile(path, np.float32, count=tensor.shape[0], offset=tensor.start)


def llama3_divisors(factor: float, theta: float, pairs: int) -> list[float]:
    """By how much Llama 3 divides each rotary frequency: 1 for short waves, ``factor`` for long, a ramp between."""
    low, high, length = _LLAMA3.values()
    divisors = []
    for i in range(pairs):
        turns = length * theta ** (-i / pairs) / (2 * math.pi)  # whole waves in the original context
        smooth = min(max((turns - low) / (high - low), 0.0), 1.0)
        divisors.append(1 / ((1 - smooth) / factor + smooth))
    return divisors


def _recognise_llama3(divisors: np.ndarray[Any, Any], theta: object) -> dict[str, Any] | None:
    if not np.isfinite(divisors).all() or not isinstance(theta, float) or theta <= 0:
        raise ModelFormatError("rope_freqs.weight holds numbers that are no divisors: download it again")
    factor = round(float(divisors.max(initial=1.0)), 4)  # was rounded to float32
    if np.allclose(divisors, 1.0):
        return None
    if not np.allclose(divisors, llama3_divisors(factor, theta, len(divisors)), rtol=1e-4):
        raise ModelFormatError("rope_freqs.weight is not Llama 3's scaling: use the model's safetensors files")
    return {"rope_type": "llama3", "factor": factor, **_LLAMA3}
