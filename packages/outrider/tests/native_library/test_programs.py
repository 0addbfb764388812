"""C programs beside the library's sources: experts one at a time, waits of a layer, a thread that is slower."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from outrider.native.compile import INSTRUCTION_SETS, SOURCES
from outrider.native.library import INSTRUCTION_SETS as NAMES

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")

PROGRAMS = Path(__file__).parents[1] / "native"
ABSENT = '#include "kernels.h"\nstatic int no(void) { return 0; }\n' + "".join(
    f'const kernels {name}_kernels = {{.name = "{name}", .supported = no}};\n' for name in NAMES if name != "portable"
)
"""In place of the instruction sets, which take most of the time to compile."""


def compiled(name: str, folder: Path, *files: Path) -> Path:
    result = folder / name
    flags = ("-O1", "-std=c11", "-ffp-contract=off", "-pthread", f"-I{SOURCES}")
    subprocess.run(["cc", *flags, PROGRAMS / f"{name}.c", *files, "-lm", "-o", result], check=True, timeout=300)
    return result


def output(program: Path) -> str:
    done = subprocess.run([program], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def portable(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Objects of the library with portable C alone."""
    folder = tmp_path_factory.mktemp("portable")
    absent = folder / "absent.c"
    absent.write_text(ABSENT)
    sources = [path for path in SOURCES.glob("*.c") if path.name not in INSTRUCTION_SETS]
    flags = ("-O1", "-std=c11", "-ffp-contract=off", "-pthread", f"-I{SOURCES}")
    subprocess.run(["cc", *flags, "-c", *sources, absent], check=True, cwd=folder, timeout=300)
    return sorted(folder.glob("*.o"))


@pytest.mark.slow
def test_experts_computed_together_have_the_bits_of_one_expert_and_one_row_at_a_time(
    portable: list[Path], tmp_path: Path
) -> None:
    said = output(compiled("experts", tmp_path, *portable))
    for routers in ("softmax", "routers of all kinds"):
        assert re.findall(rf"portable, (\d) threads, {routers}: the same bits", said) == ["1", "3", "5"]


@pytest.mark.slow
def test_a_layer_waits_few_times_however_many_experts_it_has(portable: list[Path], tmp_path: Path) -> None:
    said = output(compiled("phases", tmp_path, *portable))
    waits = {(int(e), int(r)): int(n) for e, r, n in re.findall(r"(\d+) experts, (\d+) rows: (\d+)", said)}
    assert set(waits) == {(experts, rows) for experts in (0, 4, 16) for rows in (1, 16)}
    assert all(count > 2 for count in waits.values())  # each phase is large enough to be shared out
    assert waits[0, 1] <= 5
    assert waits[4, 1] == waits[16, 1] <= 6
    assert waits[0, 16] <= 8
    assert max(waits[4, 16], waits[16, 16]) <= 10


def test_a_slow_thread_delays_a_job_by_little(tmp_path: Path) -> None:
    """One of eight threads is four times slower: equal parts would take 3.6 times as long as the work must."""
    program = compiled("slow_thread", tmp_path, SOURCES / "threads.c", SOURCES / "system.c")
    assert min(int(output(program)) for _ in range(3)) < 130
