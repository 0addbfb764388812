"""What the C sources must not have: state of their own, circles of calls, ends of the process, files over 250 lines."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import defaultdict
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from outrider.native.compile import FLAGS, INSTRUCTION_SETS, SOURCES

needs_tools = pytest.mark.skipif(
    not all(map(shutil.which, ("cc", "nm", "readelf"))), reason="no C compiler, nm or readelf"
)


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Of all files that every processor has; those of an instruction set are the same functions with other flags."""
    folder = tmp_path_factory.mktemp("objects")
    flags = ["-O0" if flag == "-O3" else flag for flag in FLAGS]
    sources = [path for path in sorted(SOURCES.glob("*.c")) if path.name not in INSTRUCTION_SETS]
    subprocess.run(["cc", *flags, "-c", *map(str, sources)], check=True, cwd=folder, timeout=120)
    return sorted(folder.glob("*.o"))


@needs_tools
def test_no_variable_outlasts_a_call(objects: list[Path]) -> None:
    """Memory that can be written to is in .data, .bss or their thread-local kind; tables of constants are not."""
    assert len(objects) > 25
    shown = "".join(
        subprocess.run(["readelf", "-SW", path], check=True, capture_output=True, text=True).stdout for path in objects
    )
    sections = re.findall(r"\] (\.(?:data|bss|tdata|tbss)\S*)\s+\w+\s+\w+ \w+ (\w+)", shown)
    assert len(sections) > 2 * len(objects) - 1
    assert {name for name, size in sections if int(size, 16)} <= {".data.rel.ro", ".data.rel.ro.local"}


@needs_tools
def test_calls_go_one_way_among_files(objects: list[Path]) -> None:
    defined, used = dict[str, str](), defaultdict[str, set[str]](set)
    listed = subprocess.run(["nm", "-A", *objects], check=True, capture_output=True, text=True).stdout
    for file, kind, name in re.findall(r"(\w+)\.o:.* ([A-Z]) (\w+)$", listed, re.MULTILINE):
        if kind == "U":
            used[file].add(name)
        else:
            defined[name] = file
    graph = {file: {defined[name] for name in names if name in defined} for file, names in used.items()}
    order = list(TopologicalSorter(graph).static_order())  # raises CycleError
    assert order.index("threads") < order.index("context") < order.index("attention") < order.index("forward")


def test_headers_include_one_way() -> None:
    includes = {path.name: set(re.findall(r'#include "(\w+\.h)"', path.read_text())) for path in SOURCES.glob("*.h")}
    order = list(TopologicalSorter(includes).static_order())  # raises CycleError
    assert order.index("native.h") < order.index("kernels.h") < order.index("context.h") < order.index("forward.h")


@needs_tools
def test_nothing_ends_the_process(objects: list[Path]) -> None:
    listed = subprocess.run(["nm", "-u", *objects], check=True, capture_output=True, text=True).stdout
    called = set(re.findall(r" U (\w+)", listed))
    assert "pthread_create" in called
    assert not called & {"abort", "exit", "_exit", "__assert_fail", "alloca"}


def test_files_are_short_enough_to_be_read() -> None:
    lines = {path.name: len(path.read_text().splitlines()) for path in SOURCES.glob("*.c")}
    assert len(lines) > 30
    assert {name: count for name, count in lines.items() if count > 250} == {}
