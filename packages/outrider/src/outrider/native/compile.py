"""Compiles the C files of ``src`` into one shared library, for this machine or another.

    python -m outrider.native.compile --out DIR [--cc CC] [--target aarch64] [--system macos] [--sanitize]

The file imports only the standard library and also runs by its path, so that wheels can be built without any
installation. One library serves all processors of an architecture: each instruction set has its own file with its
own flags, and the library chooses among them when it is loaded. No flag may change the bits of a result, so
neither ``-ffast-math`` nor contraction is allowed, and never ``-march=native``.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).parent / "src"

FLAGS = (
    *("-O3", "-std=c11", "-ffp-contract=off", "-fno-math-errno", "-fvisibility=hidden", "-fPIC", "-pthread"),
    "-Werror=vla",  # arrays whose length is an argument could overrun the stack
    "-Werror=implicit-function-declaration",  # as newer compilers have it
)
LIBRARIES = ("-lm",)  # for fmaf, where the processor has no instruction for it
SANITIZE = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")

_AVX512 = ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni", "-mfma", "-mf16c")
_WIDE = "-mprefer-vector-width=512"
INSTRUCTION_SETS: dict[str, tuple[str, tuple[str, ...]]] = {
    "isa_avx2.c": ("x86_64", ("-mavx2", "-mfma", "-mf16c")),
    "isa_avxvnni.c": ("x86_64", ("-mavx2", "-mfma", "-mf16c", "-mavxvnni")),
    "isa_avx512.c": ("x86_64", (*_AVX512, _WIDE)),
    "isa_amx.c": ("x86_64", (*_AVX512, _WIDE, "-mamx-tile", "-mamx-int8")),
    "isa_neon.c": ("aarch64", ("-march=armv8.2-a+dotprod",)),
    "isa_i8mm.c": ("aarch64", ("-march=armv8.2-a+dotprod+i8mm",)),
}
"""Files that need their own flags, and the only architecture they are compiled for."""

RECENT = ("isa_avxvnni.c", "isa_amx.c", "isa_i8mm.c")
"""Files whose flags need gcc 11 or clang 12; compiled without these flags, they hold a set that no processor has."""

_ZIG_FLAGS = {  # zig's names of flags
    "-march=armv8.2-a+dotprod": "-mcpu=generic+v8_2a+dotprod",
    "-march=armv8.2-a+dotprod+i8mm": "-mcpu=generic+v8_2a+dotprod+i8mm",
}

GLIBC = "2.28"
"""The oldest glibc that libraries built with zig run on: that of manylinux_2_28."""

_JOBS = 2  # compilers at once
_TIMEOUT = 600  # seconds for one file
_NAMES = {"amd64": "x86_64", "x86_64": "x86_64", "arm64": "aarch64", "aarch64": "aarch64"}
_SYSTEMS = {"Darwin": "macos", "Windows": "windows"}
_SUFFIXES = {"macos": ".dylib", "windows": ".dll"}
_ZIG_SYSTEMS = {"macos": "macos.11.0", "windows": "windows-gnu"}


class CompileError(Exception):
    """The compiler is missing or failed; the message is its output."""


@dataclass(frozen=True)
class Compiler:
    """A C compiler: its command with the arguments to compile for ``target`` and ``system``."""

    command: tuple[str, ...]
    target: str
    system: str

    def flags(self, flags: Sequence[str]) -> list[str]:
        """``flags`` in this compiler's spelling."""
        zig = "zig" in self.command or "ziglang" in self.command
        return [_ZIG_FLAGS.get(flag, flag) for flag in flags] if zig else list(flags)

    def knows(self, flags: Sequence[str]) -> bool:
        """Whether the compiler accepts the flags."""
        command = (*self.command, *self.flags(flags), "-E", "-x", "c", os.devnull)
        return subprocess.run(command, check=False, capture_output=True, timeout=_TIMEOUT).returncode == 0

    @property
    def key(self) -> str:
        """An identity of the compiler and its version, found without starting it."""
        program = Path(shutil.which(self.command[0]) or self.command[0]).resolve()
        about = program.stat() if program.exists() else None
        seen = (self.command, self.target, self.system, str(program), about and (about.st_size, about.st_mtime_ns))
        return hashlib.sha256(repr((seen, _zig_version())).encode()).hexdigest()[:12]


def machine_target() -> str:
    """This machine's architecture: "x86_64", "aarch64", or another for which only portable C is compiled."""
    name = platform.machine().lower()
    return _NAMES.get(name, name)


def machine_system() -> str:
    """This machine's system: "macos", "windows", or "linux" for all others."""
    return _SYSTEMS.get(platform.system(), "linux")


def find_compiler(chosen: str | None = None, target: str | None = None, system: str | None = None) -> Compiler | None:
    """``chosen``, else $CC, else cc, gcc or clang, else zig where the package ``ziglang`` is installed, else None.

    For another architecture than this machine's: ``chosen``, else a cross compiler of GNU's name, else zig. For another
    system, and for Windows, whose gcc keeps vectors on a stack that is not aligned for them: ``chosen``, else zig.
    """
    here = (machine_target(), machine_system())
    wanted = target, system = (target or here[0], system or here[1])
    chosen = chosen or (os.environ.get("CC") if wanted == here else None)
    if chosen:
        words = tuple(shlex.split(chosen))
        return Compiler(_zig_command(target, system) if words == ("zig",) else words, target, system)
    names = ("cc", "gcc", "clang") if target == here[0] else (f"{target}-linux-gnu-gcc",)
    for name in names if system == here[1] != "windows" else ():
        if shutil.which(name):
            return Compiler((name,), target, system)
    return Compiler(_zig_command(target, system), target, system) if _zig_version() is not None else None


def _zig_version() -> str | None:
    spec = importlib.util.find_spec("ziglang")
    return str(Path(spec.origin).stat().st_mtime_ns) if spec is not None and spec.origin is not None else None


def _zig_command(target: str, system: str) -> tuple[str, ...]:
    """zig's command with ``-target``, without which zig uses every instruction of this processor."""
    musl = machine_system() == "linux" and platform.libc_ver()[0] != "glibc"
    place = _ZIG_SYSTEMS.get(system, "linux-musl" if musl else f"linux-gnu.{GLIBC}")
    return sys.executable, "-m", "ziglang", "cc", "-target", f"{target}-{place}"


def source_files(target: str) -> dict[Path, tuple[str, ...]]:
    """The C files of a library for ``target``, each with its own flags."""
    found = {}
    for path in sorted(SOURCES.glob("*.c")):
        architecture, flags = INSTRUCTION_SETS.get(path.name, (target, ()))
        if architecture == target:
            found[path] = flags
    return found


def source_key(target: str) -> str:
    """A digest of all sources and flags: libraries of equal key, target and system behave alike."""
    digest = hashlib.sha256(repr((FLAGS, LIBRARIES, sorted(INSTRUCTION_SETS.items()), target)).encode())
    for path in sorted(SOURCES.glob("*.[ch]")):
        text = path.read_bytes()
        digest.update(f"{path.name} {len(text)} ".encode() + text)
    return digest.hexdigest()[:16]


def library_name(target: str, system: str | None = None) -> str:
    """The name of a library of these sources, different for every version of them. ``system``: None is this one's."""
    return f"liboutrider-{source_key(target)}{_SUFFIXES.get(system or machine_system(), '.so')}"


def checksum_path(library: Path) -> Path:
    """The file beside a library that holds its SHA-256."""
    return library.with_name(library.name + ".sha256")


def compile_library(compiler: Compiler, result: Path, *, sanitize: bool = False) -> None:
    """Write the library to ``result``, and its SHA-256 beside it; each appears whole or not at all.

    Raises ``CompileError``; ``OSError`` if the folder is not writable.
    """
    result.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=result.parent, prefix=".compile-") as name:
        folder = Path(name)
        flags = (*FLAGS, *(SANITIZE if sanitize else ()))
        objects = _compile_objects(compiler, source_files(compiler.target), flags, folder)
        built, checksum = folder / result.name, folder / "checksum"
        strip = () if sanitize or compiler.system == "macos" else ("-s",)
        _run((*compiler.command, *flags, "-shared", *strip, *map(str, objects), "-o", str(built), *LIBRARIES))
        checksum.write_text(hashlib.sha256(built.read_bytes()).hexdigest() + "\n")
        checksum.replace(checksum_path(result))
        built.replace(result)


def compile_program(compiler: Compiler, main: Path, result: Path, extra: Sequence[str] = ()) -> None:
    """Write a program to ``result``: the C file ``main`` with the whole library. ``extra``: more flags."""
    result.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=result.parent, prefix=".compile-") as name:
        files = {**source_files(compiler.target), main: ("-I", str(SOURCES))}
        objects = _compile_objects(compiler, files, (*FLAGS, *extra), Path(name))
        _run((*compiler.command, *FLAGS, *extra, *map(str, objects), "-o", str(result), *LIBRARIES))


def _compile_objects(
    compiler: Compiler, files: dict[Path, tuple[str, ...]], flags: Sequence[str], folder: Path
) -> list[Path]:
    def compile_one(item: tuple[Path, tuple[str, ...]]) -> Path:
        source, own = item
        own = () if source.name in RECENT and not compiler.knows(own) else own
        result = folder / f"{source.stem}.o"
        _run((*compiler.command, *flags, *compiler.flags(own), "-c", str(source), "-o", str(result)))
        return result

    with ThreadPoolExecutor(_JOBS) as pool:
        return list(pool.map(compile_one, files.items()))


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_TIMEOUT)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CompileError(f"{command[0]}: {error}") from None
    if done.returncode != 0:
        raise CompileError(f"{shlex.join(command)} failed:\n{done.stderr.strip()}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compile Outrider's native library.")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write it to")
    parser.add_argument("--cc", help="the compiler; 'zig' is that of the package ziglang")
    parser.add_argument("--target", choices=("x86_64", "aarch64"), default=machine_target())
    parser.add_argument("--system", choices=("linux", "macos", "windows"), default=machine_system())
    parser.add_argument("--sanitize", action="store_true", help="with address and undefined-behaviour sanitizers")
    parser.add_argument("--program", type=Path, metavar="FILE.c", help="a program of this file in place of a library")
    parser.add_argument("--flag", action="append", default=[], help="one more flag for a program: --flag=-static")
    asked = parser.parse_args(arguments)
    compiler = find_compiler(asked.cc, asked.target, asked.system)
    if compiler is None:
        print(f"no C compiler for {asked.target} {asked.system}: use --cc, or `pip install ziglang`", file=sys.stderr)
        return 1
    program = asked.program and asked.program.stem + (".exe" if asked.system == "windows" else "")
    result = asked.out / (program or library_name(compiler.target, compiler.system))
    try:
        if program:
            compile_program(compiler, asked.program, result, (*(SANITIZE if asked.sanitize else ()), *asked.flag))
        else:
            compile_library(compiler, result, sanitize=asked.sanitize)
    except CompileError as error:
        print(error, file=sys.stderr)
        return 1
    print(result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
