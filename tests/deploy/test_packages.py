"""The formula and the Debian package: what they name, and what is refused."""

from __future__ import annotations

import hashlib
import runpy
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WHEELS = [
    *("outrider-1.2.3-py3-none-any.whl", "outrider_server-1.2.3-py3-none-any.whl"),
    *("outrider_core-1.2.3-py3-none-macosx_11_0_arm64.whl", "outrider_core-1.2.3-py3-none-manylinux_2_28_x86_64.whl"),
    "outrider_core-1.2.3-py3-none-manylinux_2_28_aarch64.whl",
]


def test_the_formula_has_every_wheel_with_its_digest(tmp_path: Path) -> None:
    formula = runpy.run_path(str(ROOT / "deploy" / "homebrew.py"))["formula"]
    for name in WHEELS:
        (tmp_path / name).write_text(name)
    text = formula(tmp_path, "https://example.org/v1")
    for name in WHEELS:
        digest = hashlib.sha256(name.encode()).hexdigest()
        _, found, rest = text.partition(f'url "https://example.org/v1/{name}", using: :nounzip\n')
        assert found, name
        assert rest.split("\n")[0].strip() == f'sha256 "{digest}"'
    (tmp_path / WHEELS[2]).unlink()
    with pytest.raises(SystemExit, match=r"0 of outrider_core-.*macosx"):
        formula(tmp_path, "https://example.org/v1")


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="no dpkg-deb")
def test_the_debian_package_holds_the_program_and_its_unit(tmp_path: Path) -> None:
    package = runpy.run_path(str(ROOT / "deploy" / "debian.py"))["package"]
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\necho here\n")
    archive = tmp_path / "outrider-1.2.3-linux-x86_64.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(program, "outrider/outrider")
    made = package(archive, tmp_path, "2.36")
    assert made.name == "outrider_1.2.3_amd64.deb"
    subprocess.run(["dpkg-deb", "-x", str(made), str(tmp_path / "root")], check=True)
    start = tmp_path / "root" / "opt" / "outrider" / "bin" / "outrider"
    assert subprocess.run([str(start)], capture_output=True, text=True, check=True).stdout == "here\n"
    unit = (tmp_path / "root" / "usr" / "lib" / "systemd" / "system" / "outrider.service").read_text()
    assert "ExecStart=/opt/outrider/bin/outrider serve" in unit
    with pytest.raises(SystemExit, match="no archive"):
        package(tmp_path / "other.tar.gz", tmp_path, "2.36")
