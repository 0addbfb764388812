"""The processor: its name, and the number of threads to compute with."""

from __future__ import annotations

import os
import platform
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from outrider.native.cores import usable_cores

__all__ = ["installed_version", "num_threads", "processor_name", "set_num_threads"]

_CPUINFO = Path("/proc/cpuinfo")
_chosen: list[int] = []


def set_num_threads(count: int) -> None:
    """Set the number of threads, in the native library and torch, of models loaded from now on."""
    _chosen[:] = [count]
    torch = sys.modules.get("torch")  # slow to import, and most processes do not need it
    if torch is not None:
        torch.set_num_threads(count)


def num_threads() -> int:
    """Threads to compute with: as set, else ``OMP_NUM_THREADS``, else ``usable_cores()``: one per physical core."""
    if _chosen:
        return _chosen[0]
    asked = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    return int(asked) if asked.isdigit() and int(asked) > 0 else usable_cores()


@cache
def processor_name() -> str:
    """The CPU's name for reports."""
    named = next((fields.get("model name") for fields in _processors().values()), None)
    return named or platform.processor() or platform.machine()


@cache
def _processors() -> dict[int, dict[str, str]]:
    """Linux's properties of each logical processor."""
    found: dict[int, dict[str, str]] = {}
    if _CPUINFO.exists():
        for block in _CPUINFO.read_text(encoding="utf-8", errors="replace").split("\n\n"):
            fields = {
                key.strip(): value.strip() for key, _, value in (line.partition(":") for line in block.split("\n"))
            }
            if fields.get("processor", "").isdigit():
                found[int(fields["processor"])] = fields
    return found


def installed_version(package: str) -> str | None:
    """The version of a package, without importing it; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
