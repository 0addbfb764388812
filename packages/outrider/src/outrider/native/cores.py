"""How many threads can compute at once: physical cores that this process may use, within its share of processor time.

Two logical processors of one core (SMT) share its arithmetic units and its caches, so a second thread there slows
down the first. A container's share of processor time is a quota of its control group: more threads than that would
use it up early in each period and then all stand still together.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection
from pathlib import Path

__all__ = ["physical_cores", "processor_quota", "usable_cores"]

ROOT = Path("/")


def usable_cores(allowed: Collection[int] | None = None, root: Path = ROOT) -> int:
    """Physical cores among the logical processors ``allowed``, at most the quota of processor time; at least 1.

    ``allowed``: None is this process's affinity mask. ``root``: where ``/proc`` and ``/sys`` are.
    """
    cores, quota = physical_cores(allowed, root), processor_quota(root)
    return max(1, min(cores, cores if quota is None else math.ceil(quota)))


def physical_cores(allowed: Collection[int] | None = None, root: Path = ROOT) -> int:
    """Cores with at least one logical processor among ``allowed``; a processor without a topology is a core."""
    if allowed is None:
        allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    return len({_siblings(cpu, root) for cpu in allowed})


def processor_quota(root: Path = ROOT) -> float | None:
    """Processors whose time this process's control groups grant, such as 1.5; None without a limit."""
    found = [_quota_of(folder) for folder in _control_groups(root)]
    return min((quota for quota in found if quota is not None), default=None)


def _siblings(cpu: int, root: Path) -> str:
    topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
    for name in ("core_cpus_list", "thread_siblings_list"):  # the second is the name before Linux 5.3
        if siblings := _read(topology / name):
            return siblings
    return str(cpu)


def _control_groups(root: Path) -> list[Path]:
    """Folders of this process's control groups and all above them, of version 2 and of version 1's ``cpu``."""
    found = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0":
            mounts = [root / "sys/fs/cgroup"]
        elif "cpu" in controllers.split(","):
            mounts = [root / "sys/fs/cgroup" / name for name in (controllers, "cpu")]
        else:
            continue
        inner = Path(path.lstrip("/"))
        found += [mount / part for mount in mounts for part in (inner, *inner.parents)]
    return found


def _quota_of(folder: Path) -> float | None:
    quota, _, period = _read(folder / "cpu.max").partition(" ")
    if not quota:
        quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
    if not quota.isdigit() or not period.isdigit() or not int(period):
        return None  # "max", or -1: no limit
    return int(quota) / int(period)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
