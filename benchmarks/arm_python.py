"""A Python for Arm with the requirements of the core, in a folder, to be run under qemu on another processor.

    python -m benchmarks.arm_python FOLDER      (needs Debian's apt-get and dpkg; nothing is installed)

It prints the arguments with which ``benchmarks.conversations`` uses it.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import distribution, version
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
CORE = ROOT / "packages" / "outrider"
DEBIAN = (
    *("python3.11", "python3.11-minimal", "libpython3.11-minimal", "libpython3.11-stdlib", "libc6", "libgcc-s1"),
    *("libstdc++6", "zlib1g", "libexpat1", "libssl3", "libffi8", "libbz2-1.0", "liblzma5", "libsqlite3-0"),
    *("libuuid1", "libtinfo6", "libreadline8", "libncursesw6", "libcrypt1"),
)
"""Packages of Debian 12."""
SETTINGS = """APT::Architecture "arm64";
APT::Architectures {{ "arm64"; }};
Dir::State "{folder}/state";
Dir::State::status "{folder}/state/status";
Dir::Cache "{folder}/cache";
"""
PLATFORMS = ("manylinux2014_aarch64", *(f"manylinux_2_{minor}_aarch64" for minor in (17, 26, 27, 28, 31, 34, 35)))


def python(folder: Path) -> None:
    """Fetch Debian's packages with an apt of its own, and unpack them to ``root``."""
    for part in ("state/lists/partial", "cache/archives/partial", "packages"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    (folder / "state" / "status").touch()
    settings = folder / "apt.conf"
    settings.write_text(SETTINGS.format(folder=folder))
    apt = ["apt-get", "--config-file", str(settings), "--quiet"]
    subprocess.run([*apt, "update"], check=True)
    subprocess.run([*apt, "download", *DEBIAN], check=True, cwd=folder / "packages")
    for package in sorted((folder / "packages").glob("*.deb")):
        subprocess.run(["dpkg", "--extract", str(package), str(folder / "root")], check=True)


def requirements(folder: Path) -> None:
    """Wheels of the versions that are installed here, and what says that the core is installed, in ``site``."""
    asked = tomllib.loads((CORE / "pyproject.toml").read_text())["project"]["dependencies"]
    names = [Requirement(text).name for text in asked]
    chosen = [f"{name}=={version(name)}" for name in names]
    platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
    abis = [word for abi in ("cp311", "abi3", "none") for word in ("--abi", abi)]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--only-binary=:all:", "--python-version", "3.11"]
    command += ["--implementation", "cp", *platforms, *abis, "--target", str(folder / "site"), *chosen]
    subprocess.run(command, check=True)
    (about,) = {
        Path(str(file.locate())).parent for file in distribution("outrider-core").files or () if file.name == "METADATA"
    }
    shutil.copytree(about, folder / "site" / about.name, dirs_exist_ok=True)


def script(folder: Path) -> None:
    """A command ``python``, by whose name the processes that it starts run under qemu as well."""
    home = folder / "root" / "usr"
    words = f'qemu-aarch64 -cpu max -0 {folder / "python"} -L {folder / "root"} {home / "bin" / "python3.11"} "$@"'
    (folder / "python").write_text(f"#!/bin/sh\nPYTHONHOME={home} exec {words}\n")
    (folder / "python").chmod(0o755)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder.resolve()
    python(folder)
    requirements(folder)
    script(folder)
    print(f'--under {folder / "python"} --target aarch64 --pythonpath "{CORE / "src"}:{folder / "site"}"')
    return 0


if __name__ == "__main__":
    sys.exit(main())
