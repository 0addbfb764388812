"""The limits of the control groups that a process is in, of version 2 and of version 1: a container's."""

from __future__ import annotations

from pathlib import Path

__all__ = ["ROOT", "memory_left", "processor_quota", "read_text"]

ROOT = Path("/")
"""Where the system's folders ``proc`` and ``sys`` stand."""

_UNLIMITED = 1 << 60  # version 1 writes a number close to 2^63


def processor_quota(root: Path = ROOT) -> float | None:
    """Processors whose time this process's control groups grant, such as 1.5; None without a limit."""
    found = [_quota_of(folder) for folder in _folders("cpu", root)]
    return min((quota for quota in found if quota is not None), default=None)


def memory_left(root: Path = ROOT) -> int | None:
    """Bytes that this process's control groups still grant, those counted that hold copies of files; None: no limit."""
    found = [_memory_of(folder) for folder in _folders("memory", root)]
    return min((left for left in found if left is not None), default=None)


def _folders(controller: str, root: Path) -> list[Path]:
    """Folders of this process's control groups and all above them, of version 2 and of version 1's ``controller``."""
    found = []
    for line in read_text(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0":
            mounts = [root / "sys/fs/cgroup"]
        elif controller in controllers.split(","):
            mounts = [root / "sys/fs/cgroup" / name for name in (controllers, controller)]
        else:
            continue
        inner = Path(path.lstrip("/"))
        found += [mount / part for mount in mounts for part in (inner, *inner.parents)]
    return found


def _quota_of(folder: Path) -> float | None:
    quota, _, period = read_text(folder / "cpu.max").partition(" ")
    if not quota:
        quota, period = read_text(folder / "cpu.cfs_quota_us"), read_text(folder / "cpu.cfs_period_us")
    if not quota.isdigit() or not period.isdigit() or not int(period):
        return None  # "max", or -1: no limit
    return int(quota) / int(period)


def _memory_of(folder: Path) -> int | None:
    for limit_name, used_name in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
        limit, used = read_text(folder / limit_name), read_text(folder / used_name)
        if limit.isdigit() and used.isdigit() and int(limit) < _UNLIMITED:
            return max(0, int(limit) - int(used) + _copies_of_files(read_text(folder / "memory.stat")))
    return None


def _copies_of_files(statistics: str) -> int:
    """Bytes that a group can let go at once; ``total_`` is version 1's, with the groups below."""
    counted = dict(line.split() for line in statistics.splitlines() if len(line.split()) == 2)
    names = ("active_file", "inactive_file")
    return sum(int(counted.get(f"total_{name}", counted.get(name, "0"))) for name in names)


def read_text(path: Path) -> str:
    """A small file of the system, stripped; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
