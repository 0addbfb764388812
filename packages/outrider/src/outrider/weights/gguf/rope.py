"""Rotary position in GGUF files, as the keys of ``config.json``."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from outrider.errors import ModelFormatError
from outrider.utils.json_files import shown
from outrider.weights.families import Family
from outrider.weights.gguf.header import GGUFHeader

__all__ = ["ROPE_READ", "ROPE_TENSORS", "llama3_divisors", "read_divisors", "read_gguf_rope"]

# The scaling of Llama 3.1, 3.2 and 3.3. GGUF files keep its divisors only, by which it is recognised.
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}

_SCOUT = 1.0
"""The factor of high frequencies in Llama 4 Scout, which has no ramp."""

ROPE_READ = (
    *("rope.dimension_count", "rope.freq_base", "rope.scale_linear", "rope.scaling.type", "rope.scaling.factor"),
    *("rope.scaling.attn_factor", "rope.scaling.original_context_length"),
)
_DIVISORS, _SHORT, _LONG = "rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight"
ROPE_TENSORS = (_DIVISORS, _SHORT, _LONG)
"""Tensors that describe a rotary scaling, and are no weights."""


def read_gguf_rope(arch: str, header: GGUFHeader, turned: object, family: Family) -> dict[str, Any]:
    """Base and scaling of a file's rotary position, for heads with ``turned`` rotated dimensions.

    Raises ``ModelFormatError`` for scalings that are not implemented.
    """
    theta = header.scalar(f"{arch}.rope.freq_base", 10000.0)
    scaling = _scaling(arch, header, turned, theta)
    if scaling and scaling["rope_type"] == "yarn" and family.rope_otherwise.get("truncate") is False:
        scaling["truncate"] = False  # as the model's authors have it; llama.cpp rounds the bounds of every YaRN
    if family.rope_by_kind is None:
        length = "original_max_position_embeddings"  # of which a family may have a default, above that of a scaling
        own = {length: scaling[length]} if length in family.defaults and scaling and length in scaling else {}
        return {"rope_theta": theta, "rope_scaling": scaling} | own
    swa = header.scalar(f"{arch}.rope.freq_base_swa", family.rope_by_kind)
    local = theta if family.name == "olmo3" else swa  # llama.cpp reads OLMo 3's and does not use it
    kinds = {"full_attention": (scaling or {}) | {"rope_theta": theta}, "sliding_attention": {"rope_theta": local}}
    return {"rope_parameters": kinds}


def _scaling(arch: str, header: GGUFHeader, turned: object, theta: object) -> dict[str, Any] | None:
    """As in llama.cpp, a scaling without a type is linear, and type none has no factor."""
    get = header.scalar
    kind = get(f"{arch}.rope.scaling.type", "linear")
    factor = get(f"{arch}.rope.scaling.factor", get(f"{arch}.rope.scale_linear"))
    grown = get(f"{arch}.rope.scaling.attn_factor", 1.0)
    original = get(f"{arch}.rope.scaling.original_context_length", get(f"{arch}.context_length"))
    if kind not in ("none", "linear", "yarn", "longrope"):
        raise ModelFormatError(
            f"rope scaling {shown(kind)} is not supported: use linear, yarn, LongRoPE, Llama 3 or none"
        )
    scaled = kind != "none" and factor not in (0.0, 1.0, None)
    short = read_divisors(arch, header, _SHORT, turned)
    if short is None and _LONG in header.tensors:
        raise ModelFormatError(f"{_LONG} without {_SHORT} is not supported: download the file again")
    found = None if arch.startswith("gemma4") else read_divisors(arch, header, _DIVISORS, turned)
    llama3 = None if found is None else _recognise_llama3(found, theta)
    if sum((scaled, short is not None, llama3 is not None)) > 1:
        raise ModelFormatError(f"{kind} scaling by {shown(factor)} together with tensors of another is not supported")
    if short is not None:
        own = {"short_factor": short.tolist(), "attention_factor": grown}
        return {"rope_type": "longrope", "original_max_position_embeddings": original} | own
    if scaled and kind == "yarn" and isinstance(factor, float) and isinstance(grown, float) and factor > 0:
        grown *= 0.1 * math.log(max(factor, 1.0)) + 1
        own = {"factor": factor, "attention_factor": round(grown, 12), "beta_fast": 32.0, "beta_slow": 1.0}
        return {"rope_type": "yarn", "original_max_position_embeddings": original} | own
    if grown != 1.0:
        raise ModelFormatError(f"{arch}.rope.scaling.attn_factor={shown(grown)} is not supported: only 1.0 is")
    return {"rope_type": "linear", "factor": factor} if scaled else llama3


def read_divisors(arch: str, header: GGUFHeader, name: str, turned: object) -> np.ndarray[Any, Any] | None:
    """A tensor of divisors, one for each rotary pair; None if the file has none. Raises ``ModelFormatError``."""
    tensor = header.tensors.get(name)
    if tensor is None:
        return None
    if arch not in _WITH_TENSORS[name]:
        raise ModelFormatError(f"{name} belongs to no {arch} model: use the model's safetensors files")
    if tensor.type.name != "F32" or not isinstance(turned, int) or tensor.shape != (turned // 2,):
        raise ModelFormatError(
            f"{name} of type {tensor.type.name} and shape {list(tensor.shape)} is not a float32 divisor for "
            f"each of {shown(turned)} / 2 rotary pairs: download it again"
        )
    divisors = np.fromfile(tensor.file, np.float32, count=tensor.shape[0], offset=tensor.start)
    if not np.isfinite(divisors).all():
        raise ModelFormatError(f"{name} holds numbers that are no divisors: download it again")
    return divisors


_WITH_TENSORS = {_DIVISORS: ("llama", "llama4", "granite", "exaone4", "gemma4", "gemma4-assistant"), _SHORT: ("phi3",)}


def llama3_divisors(factor: float, theta: float, pairs: int, high: float = _LLAMA3["high_freq_factor"]) -> list[float]:
    """Llama 3's divisor of each of ``pairs`` frequencies: 1 for short waves, ``factor`` for long, a ramp between.

    ``high``: above the low frequencies' factor, or equal to it, without a ramp.
    """
    low, _, length = _LLAMA3.values()
    divisors = []
    for i in range(pairs):
        turns = length * theta ** (-i / pairs) / (2 * math.pi)  # whole waves in the original context
        smooth = min(max((turns - low) / (high - low), 0.0), 1.0) if high > low else float(turns >= low)
        divisors.append(1 / ((1 - smooth) / factor + smooth))
    return divisors


def _recognise_llama3(divisors: np.ndarray[Any, Any], theta: object) -> dict[str, Any] | None:
    if not isinstance(theta, float) or theta <= 0:
        raise ModelFormatError(f"rope.freq_base={shown(theta)} is no base: download the file again")
    factor = round(float(divisors.max(initial=1.0)), 4)  # was rounded to float32
    if np.allclose(divisors, 1.0):
        return None
    for high in (_LLAMA3["high_freq_factor"], _SCOUT):
        if np.allclose(divisors, llama3_divisors(factor, theta, len(divisors), high), rtol=1e-4):
            return {"rope_type": "llama3", "factor": factor, **_LLAMA3, "high_freq_factor": high}
    raise ModelFormatError("rope_freqs.weight is not Llama 3's scaling: use the model's safetensors files")
