"""The processor: its name, and how many threads compute on it."""

from __future__ import annotations

import os
import platform
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

__all__ = ["installed_version", "num_threads", "processor_name", "set_num_threads"]

_CPUINFO = Path("/proc/cpuinfo")
_chosen: list[int] = []


def set_num_threads(count: int) -> None:
    """How many threads models that are loaded from now on compute with, in the native library and in torch."""
    _chosen[:] = [count]
    torch = sys.modules.get("torch")  # it is slow to import, and most processes do without
    if torch is not None:
        torch.set_num_threads(count)


def num_threads() -> int:
    """Threads to compute with: as set, else ``OMP_NUM_THREADS``, else one a physical core that this process may use."""
    if _chosen:
        return _chosen[0]
    asked = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    return int(asked) if asked.isdigit() and int(asked) > 0 else _physical_cores()


@cache
def processor_name() -> str:
    """What to call the CPU in a report."""
    named = next((fields.get("model name") for fields in _processors().values()), None)
    return named or platform.processor() or platform.machine()


@cache
def _physical_cores() -> int:
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    known = _processors()
    cores = {(known.get(cpu, {}).get("physical id"), known.get(cpu, {}).get("core id") or cpu) for cpu in allowed}
    return max(1, len(cores))


@cache
def _processors() -> dict[int, dict[str, str]]:
    """What Linux says of each logical processor."""
    found: dict[int, dict[str, str]] = {}
    if _CPUINFO.exists():
        for block in _CPUINFO.read_text(errors="replace").split("\n\n"):
            fields = {
                key.strip(): value.strip() for key, _, value in (line.partition(":") for line in block.split("\n"))
            }
            if fields.get("processor", "").isdigit():
                found[int(fields["processor"])] = fields
    return found


def installed_version(package: str) -> str | None:
    """Of a package that is not imported to be asked; None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
