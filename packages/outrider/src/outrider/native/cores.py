"""How many threads can compute at once: physical cores that this process may use, within its share of processor time.

Two logical processors of one core (SMT) share its arithmetic units and its caches, so a second thread there slows
down the first. A container's share of processor time is a quota of its control group: more threads than that would
use it up early in each period and then all stand still together.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from pathlib import Path

from outrider.utils.control_groups import ROOT, processor_quota, read_text
from outrider.utils.system import allowed_processors

__all__ = ["physical_cores", "usable_cores"]


def usable_cores(allowed: Collection[int] | None = None, root: Path = ROOT) -> int:
    """Physical cores among the logical processors ``allowed``, at most the quota of processor time; at least 1.

    ``allowed``: None is this process's affinity mask. ``root``: where ``/proc`` and ``/sys`` are.
    """
    cores, quota = physical_cores(allowed, root), processor_quota(root)
    return max(1, min(cores, cores if quota is None else math.ceil(quota)))


def physical_cores(allowed: Collection[int] | None = None, root: Path = ROOT) -> int:
    """Cores with at least one logical processor among ``allowed``; a processor without a topology is a core."""
    if allowed is None:
        allowed = allowed_processors()
    return len({_siblings(cpu, root) for cpu in allowed})


def _siblings(cpu: int, root: Path) -> str:
    topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
    for name in ("core_cpus_list", "thread_siblings_list"):  # the second is the name before Linux 5.3
        if siblings := read_text(topology / name):
            return siblings
    return str(cpu)
