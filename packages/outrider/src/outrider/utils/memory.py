"""The memory of this machine that is free, and the rate of the disk that stands in for it."""

from __future__ import annotations

import os
import time
from pathlib import Path

from outrider.utils.control_groups import ROOT, memory_left, read_text
from outrider.utils.system import free_memory, read_at

__all__ = ["available_memory", "read_rate"]


def available_memory(root: Path = ROOT) -> int:
    """Bytes that can be used now without swapping: free ones, and those that hold nothing but copies of files.

    In a container no more than its control groups still grant. ``root``: where ``/proc`` and ``/sys`` are.
    """
    machine, left = _of_the_machine(root), memory_left(root)
    return machine if left is None else min(machine, left)


def _of_the_machine(root: Path) -> int:
    for line in read_text(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return free_memory()


def read_rate(path: Path, size: int = 32 << 20) -> float:
    """Bytes per second at which the disk gives the middle of a file, of which it reads at most ``size`` bytes."""
    with path.open("rb") as file:
        number = file.fileno()
        place = max(0, os.fstat(number).st_size - size) // 2
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(number, place, size, os.POSIX_FADV_DONTNEED)  # not those that were read already
        began = time.perf_counter()
        found = len(read_at(number, size, place))
        return found / max(1e-9, time.perf_counter() - began)
