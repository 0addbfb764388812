"""Which library goes into the wheel for a platform, and who compiles it."""

from __future__ import annotations

import platform as platform_module
import shutil
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import outrider.native.compile as native_compile
from outrider.native.compile import Compiler, find_compiler, library_name
from tests.paths import ROOT


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The build's hook, for hatchling's interface without hatchling; its compiler only writes its target."""
    interface = ModuleType("hatchling.builders.hooks.plugin.interface")
    base = type("BuildHookInterface", (), {"target_name": "wheel", "root": str(ROOT / "packages" / "outrider")})
    interface.BuildHookInterface = base  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, interface.__name__, interface)
    namespace: dict[str, Any] = {"__name__": "hatch_build"}
    source = (ROOT / "packages" / "outrider" / "hatch_build.py").read_text(encoding="utf-8")
    exec(compile(source, "hatch_build.py", "exec"), namespace)

    def write(compiler: Compiler, result: Path) -> None:
        result.write_text(" ".join(compiler.command[4:]))
        native_compile.checksum_path(result).write_text("")

    native = SimpleNamespace(**vars(native_compile) | {"compile_library": write})
    namespace["_load"] = lambda path: native
    return namespace["NativeLibrary"]()


@pytest.mark.parametrize(
    ("platform", "target", "system", "triple", "suffix"),
    [
        ("manylinux_2_28_x86_64", "x86_64", "linux", "x86_64-linux-gnu.2.28", ".so"),
        ("manylinux_2_28_aarch64", "aarch64", "linux", "aarch64-linux-gnu.2.28", ".so"),
        ("macosx_11_0_arm64", "aarch64", "macos", "aarch64-macos.11.0", ".dylib"),
        ("win_amd64", "x86_64", "windows", "x86_64-windows-gnu", ".dll"),
    ],
)
def test_a_wheel_holds_its_platforms_library(
    hook: Any, monkeypatch: pytest.MonkeyPatch, platform: str, target: str, system: str, triple: str, suffix: str
) -> None:
    monkeypatch.setenv("OUTRIDER_WHEEL", platform)
    monkeypatch.setattr(platform_module, "libc_ver", lambda: ("glibc", "2.36"))
    assert hook.dependencies() == ["ziglang>=0.16"]
    data: dict[str, Any] = {"force_include": {}}
    hook.initialize("standard", data)
    try:
        (built, inside), (checksum, beside) = data["force_include"].items()
        name = library_name(target, system)
        assert (data["tag"], inside) == (f"py3-none-{platform}", f"outrider/native/lib/{name}")
        assert name.endswith(suffix)
        assert (Path(checksum).name, beside) == (f"{name}.sha256", f"{inside}.sha256")
        assert Path(built).read_text().split()[-1] == triple
    finally:
        hook.finalize("standard", data, "")
    assert not Path(built).exists()


def test_an_unknown_platform_is_named(hook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_WHEEL", "win_arm64")
    with pytest.raises(ValueError, match=r"'win_arm64': use manylinux_2_28_x86_64, .*win_amd64"):
        hook.initialize("standard", {"force_include": {}})


@pytest.mark.parametrize(("here", "system"), [("linux", "windows"), ("windows", "windows"), ("linux", "macos")])
def test_only_zig_compiles_for_another_system_and_for_windows(
    monkeypatch: pytest.MonkeyPatch, here: str, system: str
) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(native_compile, "machine_system", lambda: here)
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(native_compile, "_zig_version", lambda: "1")
    found = find_compiler(system=system)
    assert found is not None
    assert found.command[1:4] == ("-m", "ziglang", "cc")
    assert found.system == system
