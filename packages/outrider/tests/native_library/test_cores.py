"""The default number of threads: a physical core each, within the affinity mask and the quota of a control group."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from outrider.native.cores import physical_cores, usable_cores
from outrider.utils.control_groups import processor_quota


def machine(root: Path, siblings: dict[int, str], files: dict[str, str] | None = None) -> Path:
    """A root with the topology ``siblings`` of each logical processor, and further files."""
    for cpu, text in siblings.items():
        write(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", text)
    for name, text in (files or {}).items():
        write(root / name, text)
    return root


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


HYBRID = {0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3", 4: "4", 5: "5"}
"""Two cores of two threads each, and two of one."""


def test_threads_of_a_core_count_once(tmp_path: Path) -> None:
    root = machine(tmp_path, HYBRID)
    assert physical_cores(range(6), root) == usable_cores(range(6), root) == 4
    assert physical_cores({0, 1}, root) == 1
    assert physical_cores({1, 2, 4}, root) == 3


def test_a_processor_without_a_topology_is_a_core(tmp_path: Path) -> None:
    assert physical_cores({0, 3, 7}, tmp_path) == 3


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "150000 100000"}, 1.5),
        ({"proc/self/cgroup": "0::/a/b", "sys/fs/cgroup/a/b/cpu.max": "max 100000"}, None),
        (  # the group above grants less
            {
                "proc/self/cgroup": "0::/a/b",
                "sys/fs/cgroup/a/b/cpu.max": "400000 100000",
                "sys/fs/cgroup/a/cpu.max": "200000 100000",
            },
            2.0,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/m\n3:cpu,cpuacct:/c\n0::/",
                "sys/fs/cgroup/cpu,cpuacct/c/cpu.cfs_quota_us": "300000",
                "sys/fs/cgroup/cpu,cpuacct/c/cpu.cfs_period_us": "100000",
            },
            3.0,
        ),
        (
            {
                "proc/self/cgroup": "1:cpu:/",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            None,
        ),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "100000 0"}, None),
        ({}, None),
    ],
)
def test_the_quota_of_control_groups(files: dict[str, str], quota: float | None, tmp_path: Path) -> None:
    root = machine(tmp_path, HYBRID, files)
    assert processor_quota(root) == quota
    assert usable_cores(range(6), root) == (4 if quota is None else {1.5: 2, 2.0: 2, 3.0: 3}[quota])


def test_a_quota_below_one_processor_still_computes(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "20000 100000"}
    assert usable_cores(range(6), machine(tmp_path, HYBRID, files)) == 1


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity masks")
def test_a_process_of_one_processor_has_one_thread() -> None:
    code = "from outrider.native.processor import num_threads; print(num_threads())"
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    cpu = min(os.sched_getaffinity(0))
    done = subprocess.run(
        [sys.executable, "-c", f"import os; os.sched_setaffinity(0, {{{cpu}}}); {code}"],
        check=True, capture_output=True, text=True, env=environment, timeout=60,
    )  # fmt: skip
    assert done.stdout.strip() == "1"
