"""``outrider.json``: the origin of a converted folder, and a digest of every file in it.

That is SHA-256 of small files, which are compared at every start, and a checksum of the weights' files.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from outrider.errors import ModelFormatError
from outrider.utils.json_files import read_json_object
from outrider.utils.system import put_on_disk
from outrider.weights.hub.checksums import CHECKSUM, SHA256, checksum_of, large_file_digest, sha256_of
from outrider.weights.hub.convert_tokenizer import write_json

MANIFEST = "outrider.json"
_FORMAT = 3  # raised when conversion changes, so that older folders are made anew
_WEIGHTS = (".gguf", ".safetensors")
Digest = tuple[str, str]
"""Its kind, and its hexadecimal digits."""
_NO_LINKS: Mapping[Path, Digest] = MappingProxyType({})


def write_manifest(folder: Path, source: dict[str, Any], links: Mapping[Path, Digest] = _NO_LINKS) -> None:
    """Record ``source`` and every file of ``folder``, and make sure that they are on the disk.

    ``links``: digests by files that the folder may have a hard link of, which is neither read again nor waited for: a
    file that has just been downloaded may take the disk a minute.
    """
    files = {}
    for path in sorted(folder.iterdir()):
        linked = next((digest for file, digest in links.items() if file.samefile(path)), None)
        kind, digest = linked or _digest(path)
        files[path.name] = {"size": path.stat().st_size, kind: digest}
        if linked is None:
            put_on_disk(path)  # or a power cut could leave a folder of the right sizes and no content
    write_json(folder / MANIFEST, {"format": _FORMAT, "source": source, "files": files})


def _digest(path: Path) -> Digest:
    return large_file_digest(path) if path.suffix in _WEIGHTS else (SHA256, sha256_of(path))


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

    Raises ``ModelFormatError`` naming the first file that differs, and ``ConfigError`` where the native library, which
    took the checksums, is no longer there.
    """
    manifest = read_json_object(folder / MANIFEST)
    files = manifest.get("files")
    if manifest.get("format") != _FORMAT or not isinstance(files, dict):
        raise ModelFormatError(f"{folder / MANIFEST} is from another version: pull the model again")
    for name, entry in files.items():
        path = folder / name
        entry = entry if isinstance(entry, dict) else {}
        size = entry.get("size")
        found = path.stat().st_size if path.is_file() else None
        if found is None or found != size:
            raise ModelFormatError(f"{path} has {found} bytes, {size} were written: pull the model again")
        if (full or path.suffix not in _WEIGHTS) and not _matches(path, entry):
            raise ModelFormatError(f"{path} is not what was written (its digest differs): pull the model again")
    return len(files)


def is_as_written(folder: Path, name: str, file: Path) -> bool:
    """Whether ``file`` has the content that the file called ``name`` in a converted folder was written with.

    Raises as ``check_files``.
    """
    return _matches(file, read_json_object(folder / MANIFEST)["files"][name])


def _matches(path: Path, entry: Mapping[str, Any]) -> bool:
    found = checksum_of(path) if CHECKSUM in entry else sha256_of(path)
    return bool(found == entry.get(CHECKSUM, entry.get(SHA256)))
