"""A model's name, path or hub id to a folder that is ready to load."""

from __future__ import annotations

import difflib
import hashlib
import os
import sys
from pathlib import Path
from typing import Any

from outrider.checkpoints.builtin import BUILTINS, pull
from outrider.checkpoints.hub import download, is_hub_id
from outrider.checkpoints.manifest import check_files, read_source, sha256_of, write_manifest
from outrider.checkpoints.weights import GGUF_WEIGHTS, PICKLE_SUFFIXES, has_weights, refuse_pickles
from outrider.errors import ModelFormatError, ModelNotFoundError
from outrider.utils.json_files import shown
from outrider.utils.user_cache import building, cache_root, locked

_HEAD = 1 << 20  # bytes of a GGUF file compared at every start; all of it is hashed when converting


def resolve(ref: str, *, progress: bool = False, verify: bool = False) -> Path:
    """The folder of the model ``ref`` names, in Hugging Face layout, made or fetched if need be.

    ``ref`` is a folder, a ``.gguf`` file (prepared once), a built-in name (pulled once) or a hub id ``org/name``.
    ``progress`` tells on stderr what takes time; ``verify`` reads every byte of what the cache holds.

    Raises ``ModelNotFoundError``, ``ModelFormatError``, ``DownloadError`` or ``CapacityError``.
    """
    path = Path(os.path.expanduser(ref))
    if ref and os.path.isdir(path):  # unlike Path's, false for any text that cannot be a path
        return _local_folder(path)
    if os.path.isfile(path):
        if path.suffix == ".gguf":
            return _converted(path.resolve(), progress=progress, verify=verify)
        if path.suffix in PICKLE_SUFFIXES:
            raise ModelFormatError(f"{path} is a pickle, which can run code when read: convert it to safetensors")
        raise ModelFormatError(f"{path} is not a model: give a folder with config.json, or a .gguf file")
    if ref in BUILTINS:
        return pull(BUILTINS[ref], progress=progress, verify=verify)
    if ref.startswith((".", "/", "~")) or path.suffix == ".gguf" or not is_hub_id(ref):
        raise _unknown(ref)
    return _local_folder(download(ref, progress=progress))


def _unknown(ref: str) -> ModelNotFoundError:
    near = difflib.get_close_matches(ref.lower(), BUILTINS, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    return ModelNotFoundError(
        f"no model {shown(ref)}: {hint}Use a folder, a .gguf file, a hub id org/name, or one of {', '.join(BUILTINS)}"
    )


def _local_folder(folder: Path) -> Path:
    if (folder / "config.json").exists():
        if not has_weights(folder):
            refuse_pickles(folder)
        return folder
    refuse_pickles(folder)
    inside = sorted(folder.glob("*.gguf"))
    files = f"*.safetensors or {GGUF_WEIGHTS}"
    remedy = f"give the file {inside[0]}" if inside else f"a model folder has config.json and {files}"
    raise ModelFormatError(f"{folder} has no config.json: {remedy}")


def gguf_folder(gguf: Path) -> Path:
    """Where the folder made from a GGUF file lies: one place per path, so that a changed file replaces its old one."""
    return cache_root() / "gguf" / f"{gguf.stem}-{hashlib.sha256(str(gguf).encode()).hexdigest()[:12]}"


def _converted(gguf: Path, *, progress: bool, verify: bool) -> Path:
    folder, found = gguf_folder(gguf), _identity(gguf)
    if _is_current(folder, found) and not verify:
        return folder
    with locked(folder.name, announce=progress):
        if not _is_current(folder, found) or (verify and not _is_intact(folder, gguf)):
            _convert(gguf, folder, found, progress)
    return folder


def _convert(gguf: Path, folder: Path, found: dict[str, Any], progress: bool) -> None:
    from outrider.checkpoints.convert import convert_gguf

    if progress:
        print(f"preparing {gguf} (once) in {folder}", file=sys.stderr)
    with building(folder) as fresh:
        convert_gguf(gguf, fresh, progress=progress)
        write_manifest(fresh, found | {"sha256": sha256_of(gguf)})


def _identity(gguf: Path) -> dict[str, Any]:
    stat = gguf.stat()
    head = sha256_of(gguf, stop=min(_HEAD, stat.st_size))
    return {"path": str(gguf), "size": stat.st_size, "mtime_ns": stat.st_mtime_ns, "head_sha256": head}


def _is_current(folder: Path, found: dict[str, Any]) -> bool:
    source = read_source(folder)
    return source is not None and found.items() <= source.items()


def _is_intact(folder: Path, gguf: Path) -> bool:
    try:
        check_files(folder, full=True)
    except ModelFormatError:
        return False
    return (read_source(folder) or {}).get("sha256") == sha256_of(gguf)
