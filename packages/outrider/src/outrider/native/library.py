"""Finding, checking and loading the native library: from the wheel, from the user's cache, or compiled now.

A library is loaded only if its SHA-256 matches the one written beside it by the build, so that a truncated or foreign
file leads to a new build, not to a crash.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import sys
import threading
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from outrider.errors import CapacityError, ConfigError
from outrider.native.compile import (
    CompileError,
    Compiler,
    checksum_path,
    compile_library,
    find_compiler,
    library_name,
    machine_target,
)
from outrider.native.signatures import declare
from outrider.utils.user_cache import cache_root, locked

logger = logging.getLogger(__name__)

ABI = 26
"""The OUTRIDER_ABI of native.h that the ctypes structures match."""

SWITCH = "OUTRIDER_COMPILE"
"""Environment variable: 0 disables the C compiler. An existing library is still used."""

ISA_VARIABLE = "OUTRIDER_ISA"
"""Environment variable: the instruction set to use instead of the best available."""

INSTRUCTION_SETS = ("portable", "avx2", "avxvnni", "avx512", "amx", "neon", "i8mm")
"""Slowest first."""

_WORKS, _DIFFERS = 1, 2  # outrider_isa_state

PACKAGED = Path(__file__).parent / "lib"
"""The folder of a wheel's library."""

_PATIENCE = 3.0  # seconds of compiling before a line reports it
_SLOW = "models run on torch operations, which is several times slower on a CPU"


@dataclass(frozen=True)
class Loaded:
    """The library, and its origin: "wheel", "cache", or "compiled" (by this process).

    ``isa``: the instruction set to use: that of ``OUTRIDER_ISA``, else the best that works.
    """

    library: ctypes.CDLL
    path: Path
    origin: str
    isa: str = "portable"


def library() -> ctypes.CDLL | None:
    """The native library, ready to use; None if unavailable, after one line with the reason.

    Raises ``ConfigError`` if ``OUTRIDER_ISA`` names an instruction set that is not available.
    """
    found = loaded()
    return found.library if found else None


def native_library() -> ctypes.CDLL:
    """The library. Raises ``ConfigError`` if it is unavailable."""
    native = library()
    if native is None:
        raise ConfigError("the native library is not there: install a C compiler, or use dtype bfloat16 or float32")
    return native


@cache
def loaded() -> Loaded | None:
    """As ``library()``, with the origin."""
    found = _from_wheel() or _from_cache()
    wanted = os.environ.get(ISA_VARIABLE)
    if found is None:
        if wanted:
            raise ConfigError(f"{ISA_VARIABLE}={wanted!r} needs the native library, and there is none: unset it")
        return None
    return replace(found, isa=_chosen_isa(found.library, wanted) if wanted else _best_isa(found.library))


def default_isa() -> str:
    """The instruction set of contexts without an explicit one. Errors as for ``native_library``."""
    native_library()
    found = loaded()
    assert found is not None
    return found.isa


def available_isas(native: ctypes.CDLL) -> list[str]:
    """The instruction sets that both the library and this processor have and that work, slowest first."""
    return [name for name in INSTRUCTION_SETS if native.outrider_isa_state(name.encode()) == _WORKS]


def failed_isas(native: ctypes.CDLL) -> list[str]:
    """The instruction sets that give other bits than portable C, and are therefore not used."""
    return [name for name in INSTRUCTION_SETS if native.outrider_isa_state(name.encode()) == _DIFFERS]


def _from_wheel() -> Loaded | None:
    path = PACKAGED / library_name(machine_target())
    if not path.exists():
        return None
    native = _open(path)
    if native is None:
        logger.warning("%s is damaged and is not used: reinstall outrider", path)
        return None
    return Loaded(native, path, "wheel")


def _from_cache() -> Loaded | None:
    compiler = None if os.environ.get(SWITCH) == "0" else find_compiler()
    folder = cache_root() / "native"
    if compiler is None:
        return _without_compiler(folder)
    plain = Path(library_name(compiler.target))
    path = folder / f"{plain.stem}-{compiler.key}{plain.suffix}"
    try:
        return _cached(path) or _compiled(compiler, path)
    except (CompileError, ConfigError, CapacityError, OSError) as error:
        logger.warning("the native library could not be built, so %s: %s", _SLOW, error)
        return None


def _without_compiler(folder: Path) -> Loaded | None:
    """A library compiled earlier from the present sources; None if there is none."""
    plain = Path(library_name(machine_target()))
    for path in sorted(folder.glob(f"{plain.stem}-*{plain.suffix}")):
        if (found := _cached(path)) is not None:
            return found
    if os.environ.get(SWITCH) == "0":
        logger.warning("%s=0 and no native library has been built, so %s", SWITCH, _SLOW)
    else:
        logger.warning("no C compiler, so %s: install gcc or clang, or `pip install ziglang`", _SLOW)
    return None


def _cached(path: Path) -> Loaded | None:
    native = _open(path) if path.exists() else None
    return Loaded(native, path, "cache") if native else None


def _compiled(compiler: Compiler, path: Path) -> Loaded:
    with locked("native-library", announce=True):
        if (found := _cached(path)) is not None:  # compiled by another process meanwhile
            return found
        notice = threading.Timer(_PATIENCE, _announce)
        notice.start()
        try:
            compile_library(compiler, path)
        finally:
            notice.cancel()
        native = _open(path)
    if native is None:
        raise CompileError(f"{path} was compiled by {compiler.command[0]}, but cannot be loaded")
    return Loaded(native, path, "compiled")


def _announce() -> None:
    print("compiling the native library, once for this machine ...", file=sys.stderr, flush=True)


def _open(path: Path) -> ctypes.CDLL | None:
    """The library at ``path``; None unless its checksum, version and machine match."""
    checksum = checksum_path(path)
    try:
        content = path.read_bytes()
        if checksum.read_text().strip() != hashlib.sha256(content).hexdigest():
            return None
        native = declare(_load(path, content))
        return native if native.outrider_abi() == ABI else None
    except (OSError, UnicodeDecodeError, AttributeError) as error:
        logger.debug("%s: %s", path, error)
        return None


def _load(path: Path, content: bytes) -> ctypes.CDLL:
    """Load ``content``, the bytes read from ``path``.

    Linux maps a library's file, so overwriting or truncating it kills the processes that run it. There, a private
    copy in memory is loaded.
    """
    if sys.platform == "linux":
        try:
            copy = os.memfd_create(path.name, os.MFD_CLOEXEC)  # stays open: the loaded library is named by its number
            with os.fdopen(copy, "wb", closefd=False) as file:
                file.write(content)
            return ctypes.CDLL(f"/proc/self/fd/{copy}")
        except OSError as error:  # no /proc, or a system that executes nothing from memory
            logger.debug("%s is loaded from its file: %s", path, error)
    return ctypes.CDLL(str(path))


def _chosen_isa(native: ctypes.CDLL, wanted: str) -> str:
    state = native.outrider_isa_state(wanted.encode())
    if state != _WORKS:
        names = ", ".join(available_isas(native))
        problem = "gives wrong results" if state == _DIFFERS else "is not available"
        raise ConfigError(f"{ISA_VARIABLE}={wanted!r} {problem} here: choose one of {names}, or unset it")
    return wanted


def _best_isa(native: ctypes.CDLL) -> str:
    """The fastest instruction set that works; portable C always does."""
    failed = list[str]()
    for name in reversed(INSTRUCTION_SETS):
        state = native.outrider_isa_state(name.encode())
        if state == _WORKS:
            if failed:
                differ = ", ".join(failed)
                message = "%s gives other bits than portable C on this machine and is not used; %s runs"
                logger.warning(message, differ, name)
            return name
        if state == _DIFFERS:
            failed.append(name)
    raise AssertionError("a native library without portable C")
