"""Makes a Debian package of the program without a Python installation (`make deb`).

    python deploy/debian.py dist/outrider-0.1.0-linux-x86_64.tar.gz --out dist

It puts the folder below /opt/outrider, a link into /usr/bin, and the systemd unit, which it neither starts nor enables.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
_NAME = re.compile(r"outrider-(?P<version>[^-]+)-linux-(?P<machine>x86_64|aarch64)\.tar\.gz")
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
_CONTROL = """Package: outrider
Version: {version}
Architecture: {machine}
Maintainer: The Outrider developers <outrider@localhost>
Installed-Size: {size}
Depends: libc6 (>= {glibc})
Section: science
Priority: optional
Description: open language models, several times faster and unchanged
 Generates text with GGUF and safetensors models on CPUs by speculative
 decoding, which proposes tokens cheaply and checks them exactly.
 .
 The package has the command line and the server, and its own Python.
"""


def package(archive: Path, out: Path, glibc: str) -> Path:
    """The package of an archive of ``deploy/standalone``. Raises SystemExit for another file."""
    found = _NAME.fullmatch(archive.name)
    if found is None:
        raise SystemExit(f"{archive} is no archive of `make standalone` for Linux")
    version, machine = found["version"], _MACHINES[found["machine"]]
    result = out / f"outrider_{version}_{machine}.deb"
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o755)
        _fill(root, archive)
        size = sum(path.stat().st_size for path in root.rglob("*") if path.is_file()) // 1024
        control = _CONTROL.format(version=version, machine=machine, size=size, glibc=glibc)
        _write(root / "DEBIAN" / "control", control)
        subprocess.run(["dpkg-deb", "-Zgzip", "--build", "--root-owner-group", str(root), str(result)], check=True)
    return result


def _fill(root: Path, archive: Path) -> None:
    home = root / "opt" / "outrider"
    with tarfile.open(archive) as packed:
        packed.extractall(home, filter="data")
    (home / "outrider").rename(home / "program")
    (home / "bin").mkdir()
    (home / "bin" / "outrider").symlink_to("../program/outrider")
    (root / "usr" / "bin").mkdir(parents=True)
    (root / "usr" / "bin" / "outrider").symlink_to("/opt/outrider/bin/outrider")
    _write(root / "usr" / "lib" / "systemd" / "system" / "outrider.service", (HERE / "outrider.service").read_text())
    _write(root / "usr" / "share" / "doc" / "outrider" / "copyright", (HERE.parent / "LICENSE").read_text())
    for path in root.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path == home / "program" / "outrider" else 0o644)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o644)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("archive", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--glibc", default="2.36", help="the oldest that the archive runs with")
    asked = parser.parse_args()
    if shutil.which("dpkg-deb") is None:
        raise SystemExit("dpkg-deb is not here: apt-get install dpkg")
    print(package(asked.archive, asked.out, asked.glibc))


if __name__ == "__main__":
    main()
