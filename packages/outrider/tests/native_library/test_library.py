"""The native library is found, checked and loaded; what is not what was built is built again, or not used."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from outrider.errors import ConfigError
from outrider.native import compile as native_compile
from outrider.native import library as native_library
from outrider.native.compile import checksum_path, compile_library, find_compiler, library_name, machine_target
from outrider.native.library import ABI, Loaded, available_isas, library, loaded

STUB = """
#include <string.h>
#define API __attribute__((visibility("default")))
API int outrider_abi(void) { return %d; }
API int outrider_isa_state(const char *name) { return !strcmp(name, "portable") || !strcmp(name, "avx2"); }
"""
needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="no C compiler")
Load = Callable[[], Loaded | None]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Loads a small library as a new process would; the cache folder and the wheel's are empty at first."""
    sources = tmp_path / "src"
    sources.mkdir()
    (sources / "stub.c").write_text(STUB % ABI)
    monkeypatch.setattr(native_compile, "SOURCES", sources)
    monkeypatch.setattr(native_library, "PACKAGED", tmp_path / "lib")
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))
    for name in ("OUTRIDER_ISA", "OUTRIDER_COMPILE"):
        monkeypatch.delenv(name, raising=False)

    def load_anew() -> Loaded | None:
        loaded.cache_clear()
        return loaded()

    return load_anew


@pytest.fixture(autouse=True)
def _forget_what_was_loaded() -> Iterator[None]:
    """Afterwards too, or later tests of this process would run on a library made for a test."""
    loaded.cache_clear()
    yield
    loaded.cache_clear()
    loaded()


def compiled(load: Load) -> Path:
    found = load()
    assert found is not None
    return found.path


def origin(load: Load) -> str | None:
    found = load()
    return found.origin if found else None


def without_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(native_compile, "_zig_version", lambda: None)


def put_into_wheel(folder: Path) -> Path:
    compiler = find_compiler()
    assert compiler is not None
    path = folder / library_name(machine_target())
    compile_library(compiler, path)
    return path


@needs_compiler
def test_it_is_compiled_once(load: Load) -> None:
    assert [origin(load), origin(load)] == ["compiled", "cache"]


@needs_compiler
def test_another_source_is_another_library(load: Load) -> None:
    first = compiled(load)
    (native_compile.SOURCES / "more.h").write_text("int more;")
    assert origin(load) == "compiled"
    assert compiled(load) != first


@needs_compiler
@pytest.mark.parametrize("damage", [b"", b"\x7fELF", b"not a library at all" * 100])
def test_a_damaged_library_is_built_again(load: Load, damage: bytes) -> None:
    path = compiled(load)
    path.unlink()  # the mapped file itself must not change
    path.write_bytes(damage)
    assert [origin(load), origin(load)] == ["compiled", "cache"]


@needs_compiler
def test_a_foreign_file_is_replaced_even_if_its_checksum_is_right(
    load: Load, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    name = compiled(load).name
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "other"))
    path = tmp_path / "other" / "native" / name  # a path that this process has not loaded yet
    path.parent.mkdir(parents=True)
    path.write_bytes(b"MZ: for another system")
    checksum_path(path).write_text(hashlib.sha256(path.read_bytes()).hexdigest())
    assert [origin(load), origin(load)] == ["compiled", "cache"]


@needs_compiler
def test_a_truncated_library_is_built_again(load: Load) -> None:
    path = compiled(load)
    whole = path.read_bytes()
    path.unlink()
    path.write_bytes(whole[: len(whole) // 2])
    assert origin(load) == "compiled"
    assert path.read_bytes() == whole


_RUNNING = """
import sys
from pathlib import Path
from outrider.native import compile as native_compile, library as native_library
native_compile.SOURCES, native_library.PACKAGED = Path(sys.argv[1]), Path(sys.argv[1])
found = native_library.loaded()
found.path.write_bytes(b"")  # as a careless copy over it would
print(found.library.outrider_abi() and "still running")
"""


@needs_compiler
@pytest.mark.skipif(sys.platform != "linux", reason="loaded from memory on Linux")
def test_a_file_that_is_damaged_while_it_runs_harms_nobody(load: Load, tmp_path: Path) -> None:
    environment = {**os.environ, "OUTRIDER_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-c", _RUNNING, str(tmp_path / "src")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "still running\n"), done.stderr
    found = load()
    assert found is not None
    assert found.origin == "compiled"  # the next process builds it again


@needs_compiler
def test_a_missing_or_unreadable_checksum_leads_to_a_new_build(load: Load) -> None:
    path = checksum_path(compiled(load))
    path.write_bytes(b"\xff\xfe")
    assert origin(load) == "compiled"
    path.unlink()
    assert origin(load) == "compiled"


@needs_compiler
def test_the_wheels_library_comes_first_and_needs_no_compiler(
    load: Load, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = put_into_wheel(tmp_path / "lib")
    without_compiler(monkeypatch, tmp_path)
    found = load()
    assert found is not None
    assert (found.origin, found.path) == ("wheel", path)


@needs_compiler
def test_a_damaged_wheel_is_named_and_not_used(load: Load, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = put_into_wheel(tmp_path / "lib")
    path.write_bytes(path.read_bytes()[:-1])
    assert origin(load) == "compiled"
    [message] = [record.getMessage() for record in caplog.records]
    assert str(path) in message
    assert "reinstall" in message


@needs_compiler
def test_a_library_of_another_abi_is_not_used(load: Load, caplog: pytest.LogCaptureFixture) -> None:
    (native_compile.SOURCES / "stub.c").write_text(STUB % (ABI + 1))
    assert load() is None
    assert "cannot be loaded" in caplog.text


def test_without_a_compiler_there_is_none_and_one_line(
    load: Load, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    without_compiler(monkeypatch, tmp_path)
    assert load() is None
    assert library() is None
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert "no C compiler" in record.getMessage()
    assert "install gcc or clang" in record.getMessage()


@needs_compiler
def test_a_library_of_the_cache_needs_no_compiler_later(
    load: Load, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert load() is not None
    without_compiler(monkeypatch, tmp_path)
    assert origin(load) == "cache"
    monkeypatch.setenv("OUTRIDER_COMPILE", "0")
    assert origin(load) == "cache"


def test_the_switch_leaves_the_compiler_alone(
    load: Load, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OUTRIDER_COMPILE", "0")
    assert load() is None
    assert "OUTRIDER_COMPILE=0" in caplog.text


@needs_compiler
def test_a_source_that_does_not_compile_gives_none_and_says_what_the_compiler_said(
    load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    (native_compile.SOURCES / "stub.c").write_text("int outrider_abi(void) { return misspelled; }")
    assert load() is None
    assert "misspelled" in caplog.text


def test_a_compiler_that_is_not_there_is_named(
    load: Load, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    assert load() is None
    assert "no-such-compiler" in caplog.text


@needs_compiler
def test_the_instruction_set_can_be_chosen(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_ISA", "portable")
    found = load()
    assert found is not None
    assert found.isa == "portable"
    assert available_isas(found.library) == ["portable", "avx2"]


@needs_compiler
@pytest.mark.parametrize("name", ["avx512", "AVX2", "fast"])
def test_an_instruction_set_that_is_not_there_is_an_error(
    load: Load, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("OUTRIDER_ISA", name)
    with pytest.raises(ConfigError, match=f"'{name}' is not available here: choose one of portable, avx2"):
        load()


def test_an_instruction_set_without_a_library_is_an_error(
    load: Load, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    without_compiler(monkeypatch, tmp_path)
    monkeypatch.setenv("OUTRIDER_ISA", "avx2")
    with pytest.raises(ConfigError, match="needs the native library"):
        load()


def test_both_sides_count_the_same_abi() -> None:
    header = (Path(native_compile.__file__).parent / "src" / "native.h").read_text()
    found = re.search(r"#define OUTRIDER_ABI (\d+)", header)
    assert found is not None
    assert int(found[1]) == ABI


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("x86_64", {"any.c", "isa_avx2.c", "isa_avxvnni.c", "isa_avx512.c", "isa_amx.c"}),
        ("aarch64", {"any.c", "isa_neon.c", "isa_i8mm.c"}),
        ("riscv64", {"any.c"}),
    ],
)
def test_each_architecture_compiles_its_own_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, expected: set[str]
) -> None:
    monkeypatch.setattr(native_compile, "SOURCES", tmp_path)
    for name in ("any.c", *native_compile.INSTRUCTION_SETS, "any.h"):
        (tmp_path / name).touch()
    files = native_compile.source_files(target)
    assert {path.name for path in files} == expected
    flags = {*native_compile.FLAGS, *(flag for own in files.values() for flag in own)}
    assert not flags & {"-ffast-math", "-march=native"}


@pytest.mark.skipif(shutil.which("cc") is None, reason="no cc")
def test_the_command_line_says_where_the_library_is(
    load: Load, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert native_compile.main(["--out", str(tmp_path / "out"), "--cc", "cc"]) == 0
    path = Path(capsys.readouterr().out.strip())
    assert path.exists()
    assert checksum_path(path).exists()
