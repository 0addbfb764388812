"""native/src/README.md names every file that an instruction set or a quantisation touches, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from outrider.native.compile import SOURCES

PAGE = SOURCES / "README.md"
NATIVE_TESTS = Path(__file__).parents[1] / "native"
ISA = re.compile(r"(?:\b|_)(?:avx2|avx512|avxvnni|amx|neon|i8mm)(?:_kernels)?\b", re.IGNORECASE)
QUANTISATION = re.compile(
    r"plane_of_step|OUTRIDER_(?:F16|CODES|SCALES_\w+|FILE_\w+|TO_Q\w+)\b|quantise_q\w+|\bvoid unpack_\w+\("
)
PROGRAMS = ("driver.c", "side_by_side.c", "driver_model.h")
"""C sources of tests that a new set or layout is to be added to."""
ALSO_NAMED = {"native/compile.py", "native/library.py", "native/stored.py"}


def named(section: str) -> set[str]:
    """Files of the first column of a section's table."""
    text = PAGE.read_text().partition(f"## {section}\n")[2].partition("\n#")[0]
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return set(re.findall(r"`([^`]+)`", " ".join(rows))) - ALSO_NAMED


def found(pattern: re.Pattern[str]) -> set[str]:
    library = {path.name: path for path in SOURCES.glob("*.[ch]")}
    tests = {f"packages/outrider/tests/native/{name}": NATIVE_TESTS / name for name in PROGRAMS}
    return {name for name, path in (library | tests).items() if pattern.search(_code(path))}


def _code(path: Path) -> str:
    """A file's name and text, without comments; those of native.h are all that it has of instruction sets."""
    text = f"{path.name}\n{path.read_text()}"
    return text if path.name == "native.h" else re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)


@pytest.mark.parametrize(
    ("section", "pattern"), [("Places of an instruction set", ISA), ("Places of a quantisation", QUANTISATION)]
)
def test_the_page_names_what_the_sources_have(section: str, pattern: re.Pattern[str]) -> None:
    assert len(named(section)) > 5
    assert named(section) == found(pattern)
