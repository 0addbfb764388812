"""Free memory: the machine's, and what a container's control groups leave of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.utils.memory import available_memory

GB = 1_000_000_000


@pytest.mark.parametrize(
    ("files", "available"),
    [
        ({}, 8 * GB),
        ({"proc/self/cgroup": "0::/a", "sys/fs/cgroup/a/memory.max": "max"}, 8 * GB),
        (  # version 2: 1 GB of 3 is used, half of it by copies of files
            {
                "proc/self/cgroup": "0::/a",
                "sys/fs/cgroup/a/memory.max": f"{3 * GB}",
                "sys/fs/cgroup/a/memory.current": f"{GB}",
                "sys/fs/cgroup/a/memory.stat": f"anon {GB // 2}\nactive_file {GB // 4}\ninactive_file {GB // 4}",
            },
            3 * GB - GB // 2,
        ),
        (  # the group above grants less
            {
                "proc/self/cgroup": "0::/a/b",
                "sys/fs/cgroup/a/b/memory.max": f"{6 * GB}",
                "sys/fs/cgroup/a/b/memory.current": f"{GB}",
                "sys/fs/cgroup/a/memory.max": f"{4 * GB}",
                "sys/fs/cgroup/a/memory.current": f"{2 * GB}",
            },
            2 * GB,
        ),
        (  # version 1, which counts groups below in numbers of their own
            {
                "proc/self/cgroup": "9:cpu:/\n4:memory:/m",
                "sys/fs/cgroup/memory/m/memory.limit_in_bytes": f"{2 * GB}",
                "sys/fs/cgroup/memory/m/memory.usage_in_bytes": f"{GB}",
                "sys/fs/cgroup/memory/m/memory.stat": f"inactive_file 0\ntotal_inactive_file {GB // 2}",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{7 * GB}",
            },
            GB + GB // 2,
        ),
        (  # a group that has used more than was granted to it since
            {
                "proc/self/cgroup": "0::/a",
                "sys/fs/cgroup/a/memory.max": f"{GB}",
                "sys/fs/cgroup/a/memory.current": f"{2 * GB}",
            },
            0,
        ),
    ],
)
def test_a_container_leaves_no_more_than_its_limit(files: dict[str, str], available: int, tmp_path: Path) -> None:
    for name, text in {"proc/meminfo": f"MemAvailable: {8 * GB // 1024 + 1} kB", **files}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    assert available <= available_memory(tmp_path) <= available + 1024
