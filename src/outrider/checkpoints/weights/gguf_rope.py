"""Rotary position in GGUF files, as the keys of ``config.json``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from outrider.checkpoints.weights.gguf_header import GGUFHeader
from outrider.errors import ModelFormatError
from outrider.utils.json_files import shown

# What Llama 3.1, 3.2 and 3.3 use; GGUF files keep the resulting divisors only, so they are recognised, not read.
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def read_rope(arch: str, header: GGUFHeader, path: Path) -> dict[str, Any]:
    """``rope_theta`` and ``rope_scaling`` of a file. Raises ``ModelFormatError`` for scalings not implemented."""
    get = header.scalar
    theta = get(f"{arch}.rope.freq_base", 10000.0)
    older = get(f"{arch}.rope.scale_linear")
    kind = get(f"{arch}.rope.scaling.type", "none" if older is None else "linear")
    if kind not in ("none", "linear"):
        raise ModelFormatError(f"rope scaling {shown(kind)} is not supported: use linear, Llama 3 or none")
    factor = get(f"{arch}.rope.scaling.factor", older)
    scaling = {"rope_type": "linear", "factor": factor} if kind == "linear" and factor not in (0.0, 1.0, None) else None
    tensor = header.tensors.get("rope_freqs.weight")
    if tensor is not None:
        if tensor.type.name != "F32" or len(tensor.shape) != 1:
            raise ModelFormatError("rope_freqs.weight is not a line of float32 divisors: not supported")
        divisors = np.fromfile(path, np.float32, count=tensor.shape[0], offset=tensor.start)
        scaling = _recognise_llama3(divisors, theta) or scaling
    return {"rope_theta": theta, "rope_scaling": scaling}


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
