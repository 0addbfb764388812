"""What systems do differently, as far as one of them can show it."""

from __future__ import annotations

import ctypes
import os
import stat
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from outrider.utils import system, windows
from outrider.utils.system import allowed_processors, free_memory, private_file, read_at, total_memory, write_at


@pytest.mark.parametrize(
    "positioned", [pytest.param(True, marks=pytest.mark.skipif(not hasattr(os, "pread"), reason="Windows")), False]
)
def test_threads_read_and_write_at_places_of_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, positioned: bool
) -> None:
    monkeypatch.setattr(system, "_POSITIONED", positioned)
    pieces = [bytes([i, 10, 13, 26]) * 1000 for i in range(64)]  # with ends of lines and of texts
    with (tmp_path / "file").open("w+b") as file, ThreadPoolExecutor(8) as pool:
        number = file.fileno()
        list(pool.map(lambda i: write_at(number, memoryview(pieces[i]), 4000 * i), range(64)))
        assert list(pool.map(lambda i: read_at(number, 4000, 4000 * i), range(64))) == pieces
        assert read_at(number, 10, 4000 * 64) == b""


def test_a_private_file_is_its_owners_and_keeps_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for mode, expected in (("x", b"\r\n\n"), ("w", b"\n"), ("a", b"\n\x1a\n")):
        with os.fdopen(private_file(path, mode), "wb") as file:  # type: ignore[arg-type]
            file.write(expected[1 if mode == "a" else 0 :])
        assert path.read_bytes() == expected
    with pytest.raises(FileExistsError):
        private_file(path, "x")
    if sys.platform != "win32":
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_memory_and_processors_are_plausible() -> None:
    assert 1 << 28 < free_memory() <= total_memory() < 1 << 48
    assert 1 <= len(allowed_processors()) <= (os.cpu_count() or 1)


def test_structures_for_windows_have_the_sizes_of_its_headers() -> None:
    assert (ctypes.sizeof(windows._Memory), ctypes.sizeof(windows._Limits)) == (64, 144)
    assert windows._Limits.process_memory.offset == 112
