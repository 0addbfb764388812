"""Packs installed distributions and their Python into one folder that runs by itself (`make standalone`).

    python deploy/standalone/build.py --version 0.1.0 --out dist     (with PyInstaller, in an environment of the wheels)

Writes ``dist/outrider-VERSION-PLATFORM.tar.gz``: the folder ``outrider`` with the program of the same name. It needs a
glibc no older than that of the machine that packs it.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
PARTS = ("outrider-core", "outrider-server", "outrider-drafters")
WITHOUT = ("tkinter", "unittest", "pydoc_data", "lib2to3", "idlelib", "PIL", "torch", "transformers")


def arguments(folder: Path) -> list[str]:
    """PyInstaller's, to build below ``folder``."""
    found = ["--noconfirm", "--log-level", "WARN", "--onedir", "--name", "outrider", "--contents-directory", "lib"]
    found += ["--distpath", str(folder), "--workpath", str(folder / "work"), "--specpath", str(folder)]
    for part in PARTS:  # whole, with their data and their entry points: commands are found and imported by name
        package = part.replace("-core", "").replace("-", "_")
        found += ["--collect-all", package, "--recursive-copy-metadata", part]  # libraries ask for their versions
    for package in ("llguidance", "gguf", "uvicorn"):
        found += ["--collect-submodules", package]
    for package in WITHOUT:
        found += ["--exclude-module", package]
    return [*found, str(HERE / "program.py")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--version", required=True)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    result = asked.out / f"outrider-{asked.version}-{platform.system().lower()}-{platform.machine().lower()}.tar.gz"
    with tempfile.TemporaryDirectory() as name:
        subprocess.run([sys.executable, "-m", "PyInstaller", *arguments(Path(name))], check=True)
        with tarfile.open(result, "w:gz") as archive:
            archive.add(Path(name) / "outrider", "outrider", filter=_nobodys)
    print(f"{result}: {result.stat().st_size / 1e6:.0f} MB")


def _nobodys(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    return entry


if __name__ == "__main__":
    main()
