"""Compares the bits of a fixed model's logits between instruction sets, thread counts, compilers and processors.

    make native-digest                       (ARGS=--write after a change that is meant to change bits;
                                              ARGS=--here: this machine's compiler and instruction sets, nothing else)

Everything that this machine can run is run: its own instruction sets; the same with zig's compiler, if the package
``ziglang`` is installed; that one's program for Windows under wine, if that is installed; the other architecture and an
older processor under qemu-user, if that is installed with a compiler (Debian: wine64, qemu-user,
gcc-aarch64-linux-gnu). Instruction sets that could not be run are named. A last build has
one sum in another order, and must differ.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from outrider.native.compile import (
    SOURCES,
    CompileError,
    Compiler,
    compile_program,
    find_compiler,
    machine_target,
)
from outrider.native.library import INSTRUCTION_SETS

HERE = Path(__file__).parent
EXPECTED = HERE / "digest.txt"
CONTROL = "-DOUTRIDER_CONTROL_REORDERED"
TILE_MODEL = ("-I", str(SOURCES), "-include", str(HERE / "tile_model.h"))
"""Flags of a build in which the tile instructions of AMX are C functions; it needs AVX-512."""
VNNI_MODEL = ("-I", str(SOURCES), "-include", str(HERE / "vnni_model.h"))
"""The same for the dot product of AVX-VNNI; it needs AVX2."""


@dataclass(frozen=True)
class Check:
    """One program and how it is run: ``words`` before and ``arguments`` behind its name."""

    name: str
    compiler: Compiler
    flags: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()


def checks(compiler: Compiler, *, here: bool) -> list[Check]:
    """What this machine can compile and run; ``here``: without other compilers and emulated processors."""
    found = [Check("this machine", compiler)]
    if here:
        return found
    own = machine_target()
    if own == "x86_64":
        found.append(Check("a model of AMX in C", compiler, TILE_MODEL, arguments=("-t", "4", "amx")))
        found.append(Check("a model of AVX-VNNI in C", compiler, VNNI_MODEL, arguments=("-t", "4", "avxvnni")))
    zig = find_compiler("zig") if _has_zig() else None
    if zig is not None:
        found.append(Check("this machine, compiled by zig", zig, arguments=("-t", "4")))
    windows = find_compiler("zig", system="windows") if zig is not None and own == "x86_64" else None
    if windows is not None and shutil.which("wine"):
        found.append(Check("wine, Windows", windows, words=("wine",), arguments=("-t", "4")))
    if own == "x86_64" and shutil.which("qemu-x86_64"):
        words = ("qemu-x86_64", "-cpu", "Haswell")
        found.append(Check("qemu, a processor with AVX2", compiler, ("-static",), words, ("-t", "4", "avx2")))
    other = "aarch64" if own == "x86_64" else "x86_64"
    cross = find_compiler(target=other)
    if cross is not None and shutil.which(f"qemu-{other}"):
        words = (f"qemu-{other}", "-cpu", "max")
        found.append(Check(f"qemu, {other}", cross, ("-static",), words, ("-t", "4")))
    return found


def run(check: Check, folder: Path) -> dict[str, str]:
    """Digests, of models, of hybrids and of routers, by instruction set and threads.

    Raises ``CompileError`` if the driver cannot be built or fails.
    """
    program = folder / ("driver.exe" if check.compiler.system == "windows" else "driver")
    compile_program(check.compiler, HERE / "driver.c", program, check.flags)
    command = [*check.words, str(program), *check.arguments]
    environment = os.environ | {"WINEPREFIX": str(folder / "wine"), "WINEDEBUG": "-all"}
    done = subprocess.run(
        command, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=1800, env=environment
    )
    if done.returncode != 0:  # qemu also warns of what it leaves out, which does not matter
        raise CompileError(f"{check.name}: the driver failed:\n{done.stderr.strip()}")
    digests = {}
    for line in done.stdout.splitlines():
        isa, threads, digest = line.split(maxsplit=2)
        digests[f"{check.name}: {isa}, threads: {threads}"] = digest
    return digests


def _has_zig() -> bool:
    try:
        command = [sys.executable, "-m", "ziglang", "version"]
        return subprocess.run(command, check=False, capture_output=True).returncode == 0
    except OSError:
        return False


def _compare(expected: str | None, compiler: Compiler, folder: Path, *, here: bool) -> tuple[str | None, bool]:
    """The first digest, and whether all are equal, and equal to ``expected`` if there is one."""
    first, equal, missing = expected, True, list(INSTRUCTION_SETS)
    for check in checks(compiler, here=here):
        for where, digest in run(check, folder).items():
            first = first or digest
            equal &= digest == first
            missing = [name for name in missing if f": {name}, " not in where]
            print(f"{digest}  {where}{'' if digest == first else '   <- DIFFERS'}", flush=True)
    if missing:
        print(f"not run here: {', '.join(missing)}")
    return first, equal


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="note the digest in digest.txt, as that of new arithmetic")
    parser.add_argument("--here", action="store_true", help="neither other compilers nor emulated processors")
    asked = parser.parse_args()
    write = asked.write
    compiler = find_compiler()
    if compiler is None:
        print("no C compiler", file=sys.stderr)
        return 1
    expected = None if write or not EXPECTED.exists() else EXPECTED.read_text().strip()
    try:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:  # wine's server ends a little later
            first, equal = _compare(expected, compiler, Path(name), here=asked.here)
            control = run(Check("control", compiler, (CONTROL,), arguments=("-t", "1")), Path(name))
    except (CompileError, subprocess.TimeoutExpired) as error:
        print(error, file=sys.stderr)
        return 1
    blind = [where for where, digest in control.items() if digest == first]
    print(f"{next(iter(control.values()))}  control with one sum in another order")
    if blind:
        print(f"the control has the same digest: {blind}", file=sys.stderr)
    if not equal:
        print("bits differ; if all changed on purpose: make native-digest ARGS=--write", file=sys.stderr)
    elif write and not blind:
        EXPECTED.write_text(f"{first}\n")
    return int(bool(blind) or not equal)


if __name__ == "__main__":
    sys.exit(main())
