"""Capabilities of torch on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch

from outrider.errors import ConfigError
from outrider.native.processor import num_threads


def _capabilities() -> Mapping[str, Any]:
    """Instruction sets by name; empty if torch does not report them."""
    capabilities: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return capabilities


@cache
def has_bf16_instructions() -> bool:
    """Whether the processor multiplies bfloat16 in hardware; without them float32 is the faster choice."""
    known = _capabilities()
    native = any(known.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16"))
    native = native or bool(getattr(torch.cpu, "_is_avx512_bf16_supported", bool)())
    return native and has_onednn_bf16()


@cache
def has_onednn_bf16() -> bool:
    """Whether oneDNN supports bfloat16 here; on x86 it needs AVX-512 or AVX-NE-CONVERT, and raises without them."""
    supported = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    return supported is not None and bool(supported())


def choose_device(name: str) -> str:
    """A device by name, ``auto``: a CUDA device if there is one, else the CPU.

    Raises ``ConfigError`` if the device is missing.
    """
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device={name!r} is unknown: use auto, cpu or cuda") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device={name!r} is not there: torch sees no CUDA device, use cpu")
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device={name!r} is not supported: use cpu or cuda")
    return str(device)


def free_memory(device: Any) -> int:
    """Free memory of a GPU, in bytes."""
    return int(torch.cuda.mem_get_info(torch.device(device))[0])


def release_cached_memory() -> None:
    """Return torch's cached GPU memory to the system."""
    torch.cuda.empty_cache()


def gpu_name() -> str | None:
    """The GPU's name for reports; None without a GPU."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


def use_chosen_threads() -> None:
    """Give torch the native library's number of threads, in either order of loading."""
    torch.set_num_threads(num_threads())
