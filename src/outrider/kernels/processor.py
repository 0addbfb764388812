"""What the processor can do."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch


def processor() -> Mapping[str, Any]:
    """What torch knows of the CPU: instruction sets by name, and ``cpu_name``. Empty where it does not say."""
    capabilities: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return capabilities


def processor_name() -> str:
    """What to call the CPU in a report."""
    return str(processor().get("cpu_name") or platform.processor() or platform.machine())


@cache
def has_bf16_instructions() -> bool:
    """Whether the processor multiplies bfloat16 in hardware; without them float32 is the faster choice."""
    known = processor()
    native = any(known.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16"))
    native = native or bool(getattr(torch.cpu, "_is_avx512_bf16_supported", bool)())
    return native and has_onednn_bf16()


@cache
def has_onednn_bf16() -> bool:
    """Whether oneDNN takes bfloat16 here; on x86 it wants AVX-512 or AVX-NE-CONVERT, and raises without them."""
    supported = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    return supported is not None and bool(supported())
