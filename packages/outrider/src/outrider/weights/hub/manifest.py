"""``outrider.json``: the origin of a converted folder, and the digest of every file in it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from outrider.errors import ModelFormatError
from outrider.utils.json_files import read_json_object
from outrider.weights.hub.convert_tokenizer import write_json

MANIFEST = "outrider.json"
_FORMAT = 3  # raised when conversion changes, so that older folders are made anew
_BLOCK = 1 << 20
_WEIGHTS = (".gguf", ".safetensors")
_NO_LINKS: Mapping[Path, str] = MappingProxyType({})


def sha256_of(path: Path, on_bytes: Callable[[int], None] = lambda _: None, *, stop: int | None = None) -> str:
    """The hexadecimal SHA-256 of a file, or of its first ``stop`` bytes."""
    digest = hashlib.sha256()
    left = path.stat().st_size if stop is None else stop
    with path.open("rb") as file:
        while left and (block := file.read(min(_BLOCK, left))):
            digest.update(block)
            left -= len(block)
            on_bytes(len(block))
    return digest.hexdigest()


def write_manifest(folder: Path, source: dict[str, Any], links: Mapping[Path, str] = _NO_LINKS) -> None:
    """Record ``source`` and every file of ``folder``, and make sure that they are on the disk.

    ``links``: digests by files that the folder may have a hard link of, which is not read again.
    """
    files = {}
    for path in sorted(folder.iterdir()):
        known = [digest for linked, digest in links.items() if linked.samefile(path)]
        files[path.name] = {"size": path.stat().st_size, "sha256": known[0] if known else sha256_of(path)}
        with path.open("rb") as file:
            os.fsync(file.fileno())  # or a power cut could leave a folder of the right sizes and no content
    write_json(folder / MANIFEST, {"format": _FORMAT, "source": source, "files": files})


def read_source(folder: Path) -> dict[str, Any] | None:
    """The ``source`` of an intact converted folder; None if there is none, or it is damaged or of another version.

    Compares sizes, and the bytes of all but the weights, which takes little time; ``check_files`` can read every byte.
    """
    try:
        check_files(folder, full=False)
        source = read_json_object(folder / MANIFEST).get("source")
    except ModelFormatError:
        return None
    return source if isinstance(source, dict) else None


def check_files(folder: Path, *, full: bool) -> int:
    """Compare a converted folder with its manifest, and return the number of files checked.

    That is sizes, and the bytes of all but the weights; with ``full``, of those too.

    Raises ``ModelFormatError`` naming the first file that differs.
    """
    manifest = read_json_object(folder / MANIFEST)
    files = manifest.get("files")
    if manifest.get("format") != _FORMAT or not isinstance(files, dict):
        raise ModelFormatError(f"{folder / MANIFEST} is from another version: pull the model again")
    for name, entry in files.items():
        path = folder / name
        size, digest = (entry.get("size"), entry.get("sha256")) if isinstance(entry, dict) else (None, None)
        found = path.stat().st_size if path.is_file() else None
        if found is None or found != size:
            raise ModelFormatError(f"{path} has {found} bytes, {size} were written: pull the model again")
        if (full or path.suffix not in _WEIGHTS) and sha256_of(path) != digest:
            raise ModelFormatError(f"{path} is not what was written (SHA-256 differs): pull the model again")
    return len(files)
