"""Puts the compiled native library into a wheel, if ``OUTRIDER_WHEEL`` names the platform that the wheel is for.

    OUTRIDER_WHEEL=manylinux_2_28_x86_64 pip wheel --no-deps .      (compiled by zig, which knows old versions of glibc)
    OUTRIDER_WHEEL=manylinux_2_28_aarch64 pip wheel --no-deps .     (on any machine, as are the next two)
    OUTRIDER_WHEEL=macosx_11_0_arm64 pip wheel --no-deps .
    OUTRIDER_WHEEL=win_amd64 pip wheel --no-deps .
    OUTRIDER_WHEEL=native CC=gcc pip wheel --no-deps .              (for this machine and its system)

Without it a wheel holds the C sources, as an editable installation does, and the library is compiled on first use.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

VARIABLE = "OUTRIDER_WHEEL"
_MANYLINUX = re.compile(r"manylinux_2_(\d+)_(x86_64|aarch64)")
_OTHERS = {"macosx_11_0_arm64": ("aarch64", "macos"), "win_amd64": ("x86_64", "windows")}


class NativeLibrary(BuildHookInterface):
    """Compiles the library, adds it to the wheel and gives the wheel its platform."""

    def dependencies(self) -> list[str]:
        zig = self.target_name == "wheel" and os.environ.get(VARIABLE, "") not in ("", "native")
        return ["ziglang>=0.16"] if zig else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        platform = os.environ.get(VARIABLE)
        if not platform or version == "editable" or self.target_name != "wheel":
            return
        package = Path(self.root, "src", "outrider", "native")
        native = _load(package / "compile.py")
        self._folder = tempfile.mkdtemp(prefix="outrider-wheel-")
        library = self._compile(native, platform)
        place = "outrider/native/lib"
        for path in (library, native.checksum_path(library)):
            build_data["force_include"][str(path)] = f"{place}/{path.name}"
        tag = sysconfig.get_platform().replace("-", "_").replace(".", "_") if platform == "native" else platform
        build_data["tag"] = f"py3-none-{tag}"
        build_data["pure_python"] = False

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "_folder"):
            shutil.rmtree(self._folder)

    def _compile(self, native: ModuleType, platform: str) -> Path:
        manylinux, here = _MANYLINUX.fullmatch(platform), (native.machine_target(), native.machine_system())
        known = {"native": here, **_OTHERS, **({platform: (manylinux[2], "linux")} if manylinux else {})}
        if platform not in known:
            raise ValueError(f"{VARIABLE}={platform!r}: use manylinux_2_28_x86_64, {', '.join(known)}")
        target, system = known[platform]
        compiler = native.find_compiler(None if platform == "native" else "zig", target, system)
        if compiler is None:
            raise RuntimeError("no C compiler: install gcc or clang")
        library = Path(self._folder, native.library_name(target, system))
        native.compile_library(compiler, library)
        if manylinux and (newest := _newest_glibc(library)) > int(manylinux[1]):
            raise RuntimeError(f"{library.name} needs glibc 2.{newest}, so it is not {platform}")
        return library


def _newest_glibc(library: Path) -> int:
    """The minor version of the newest glibc symbol that the library asks for."""
    return max((int(minor) for minor in re.findall(rb"GLIBC_2\.(\d+)", library.read_bytes())), default=0)


def _load(path: Path) -> ModuleType:
    """A module by its path: the package itself cannot be imported before it is built."""
    spec = importlib.util.spec_from_file_location("outrider_native_compile", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
