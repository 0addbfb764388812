"""Resolves a model's name, path or hub id to a folder that is ready to load."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from outrider.errors import ModelFormatError, ModelNotFoundError, OutriderError
from outrider.utils.json_files import shown
from outrider.utils.progress import progress_bar
from outrider.utils.suggest import close_to
from outrider.utils.user_cache import building, cache_root, locked
from outrider.weights.folder import GGUF_WEIGHTS, PICKLE_SUFFIXES, has_weights, refuse_pickles
from outrider.weights.gguf.draft_head import HEADS, find_draft_head
from outrider.weights.gguf.shards import first_shard, gguf_files, shard_name
from outrider.weights.hub.builtin import BUILTINS, pull
from outrider.weights.hub.checksums import large_file_digest, sha256_of
from outrider.weights.hub.downloads import TOWERS, best_gguf, download, download_gguf
from outrider.weights.hub.manifest import Digest, check_files, is_as_written, read_source, write_manifest
from outrider.weights.hub.refs import HubRef, parse_hub_ref
from outrider.weights.hub.stores.find import find_model, names_like
from outrider.weights.hub.stores.found import FoundModel
from outrider.weights.hub.stores.settings import StoredSettings, settings_of

_OLLAMA_NAME = re.compile(r"[\w.-]+:[\w.-]+")
_CONVERSION = 1  # raised when other files are made of a GGUF file, so that older folders are made anew
_HEAD = 1 << 20  # bytes of a GGUF file compared at every start; a conversion takes a checksum of the whole file
_LONGEST_NAME = 60  # characters of a file's name that a line shows


def resolve(ref: str, *, progress: bool = False, verify: bool = False) -> Path:
    """The folder of a model, in Hugging Face layout; it is made or fetched if need be.

    Args:
        ref: a folder, a ``.gguf`` file (prepared once) or any part of a split one, a folder with one GGUF model alone,
            a built-in name (pulled once), the name of a model in another program's store, or a model of the hub, with
            or without the hub's address: ``org/name`` is its safetensors files, ``org/name:Q4_K_M`` its GGUF file with
            weights of this type.
        progress: report long work on stderr.
        verify: read every byte of the cached copy, and ask the hub for a newer one.

    Raises ``ModelNotFoundError``, ``ModelFormatError``, ``DownloadError`` or ``CapacityError``.
    """
    path = Path(os.path.expanduser(ref))
    if ref and os.path.isdir(path):  # unlike ``Path.is_dir``, False for text that cannot be a path
        inside = lone_gguf(path)
        return _local_folder(path) if inside is None else _converted(inside, progress=progress, verify=verify)
    if os.path.isfile(path):
        if path.suffix == ".gguf":
            return _converted(real_place(path), progress=progress, verify=verify)
        if path.suffix in PICKLE_SUFFIXES:
            raise ModelFormatError(f"{path} is a pickle, which can run code when read: convert it to safetensors")
        raise ModelFormatError(f"{path} is not a model: give a folder with config.json, or a .gguf file")
    if ref in BUILTINS:
        return pull(BUILTINS[ref], progress=progress, verify=verify)
    found, hub = found_model(ref, hub=not verify), None if is_path(ref) else parse_hub_ref(ref)
    if found is not None and found.file is not None:
        if progress and (notice := settings_of(found).notice(found.name)) is not None:
            print(notice, file=sys.stderr)
        return _converted(real_place(found.file), progress=progress, verify=verify, copy=False)
    if hub is None:
        raise ModelNotFoundError(f"no model {shown(ref)}: {_remedy(ref, path)}")
    return _from_hub(hub, progress=progress, verify=verify)


def is_path(ref: str) -> bool:
    """Whether a text can be nothing but a path."""
    return ref.startswith((".", "/", "~"))


def found_model(ref: str, *, hub: bool = True) -> FoundModel | None:
    """The model of another program's store that ``ref`` names; None: ``ref`` is a path, built-in, or names none.

    ``hub``: the hub's cache is such a store. Raises as ``find_model``.
    """
    if not ref or is_path(ref) or ref in BUILTINS or os.path.exists(ref):
        return None
    return find_model(ref, hub=hub)


def stored_settings(ref: str) -> StoredSettings:
    """What Ollama's store says of the model ``ref`` beside its weights; nothing of a model from elsewhere."""
    try:
        found = found_model(ref, hub=False)
    except OutriderError:  # a model that is loaded, and that its store has lost since
        found = None
    return StoredSettings() if found is None else settings_of(found)


def file_of(ref: str) -> str:
    """The path of the GGUF file that ``ref`` names in another program's store; otherwise ``ref`` itself."""
    found = found_model(ref)
    return ref if found is None or found.file is None else str(real_place(found.file))


def _from_hub(hub: HubRef, *, progress: bool, verify: bool) -> Path:
    if hub.gguf is None:
        return _local_folder(download(hub.repo, progress=progress))
    wanted = hub.gguf or best_gguf(hub.repo, progress=progress)
    file = download_gguf(hub.repo, wanted, progress=progress)
    return _converted(real_place(file), progress=progress, verify=verify)


def _remedy(ref: str, path: Path) -> str:
    """The remedy in the error for a ``ref`` that names no model."""
    if path.suffix == ".gguf" or is_path(ref):
        kind = "file" if path.suffix == ".gguf" else "file or folder"
        return f"there is no such {kind}{_beside(path)}. Check the path"
    if _OLLAMA_NAME.fullmatch(ref):
        near = names_like(ref)
        there = f"its store here has {', '.join(near)}" if near else "which is not known here"
        hint = f"it looks like a name of Ollama's library, {there}. "
    else:
        families = {name.split("-")[0]: name for name in BUILTINS}
        near = [families.get(name, name) for name in close_to(ref, [*BUILTINS, *families], count=2)]
        hint = f"did you mean {' or '.join(dict.fromkeys(near))}? " if near else ""
    return f"{hint}Use a folder, a .gguf file, org/name or org/name:Q4_K_M of the hub, or one of {', '.join(BUILTINS)}"


def _beside(path: Path) -> str:
    """Files with a name like that of ``path``, in its folder."""
    try:
        folder = path.parent
        if not folder.is_dir():
            return f", nor a folder {folder}"
        names = [file.name for file in folder.iterdir() if file.is_dir() or file.suffix == ".gguf"]
    except (OSError, ValueError):  # a folder that cannot be read, or a text that is no path
        return ""
    near = close_to(path.name, names, count=2)
    return f", but {' and '.join(near)}" if near else ""


def _local_folder(folder: Path) -> Path:
    if (folder / "config.json").exists():
        if not has_weights(folder):
            refuse_pickles(folder)
        return folder
    refuse_pickles(folder)
    inside = _ggufs(folder)
    files = f"*.safetensors or {GGUF_WEIGHTS}"
    remedy = f"give one of its files, as {inside[0]}" if inside else f"a model folder has config.json and {files}"
    raise ModelFormatError(f"{folder} has no config.json: {remedy}")


def lone_gguf(folder: Path) -> Path | None:
    """The GGUF file, or first part, of a folder that holds no ``config.json``, no pickle and one GGUF model."""
    if (folder / "config.json").exists() or any(path.suffix in PICKLE_SUFFIXES for path in folder.iterdir()):
        return None
    models = _ggufs(folder)
    return real_place(models[0]) if len(models) == 1 else None


def _ggufs(folder: Path) -> list[Path]:
    """The first files of the GGUF models in a folder, except vision towers and draft heads."""
    files = [path for path in folder.glob("*.gguf") if not any(fnmatchcase(path.name, p) for p in (TOWERS, HEADS))]
    return sorted(set(map(first_shard, files)))


def real_place(file: Path) -> Path:
    """The path of a GGUF file, or of a split model's first file, without links in its folders.

    A file that is a link keeps its name: the hub's cache names the targets of links by their digests.
    """
    return first_shard(file.parent.resolve() / file.name)


def gguf_folder(gguf: Path) -> Path:
    """The cache's folder of a converted GGUF file: one for each path, so that a changed file replaces its old one."""
    return cache_root() / "gguf" / f"{gguf.stem}-{hashlib.sha256(os.fsencode(gguf)).hexdigest()[:12]}"


def _converted(gguf: Path, *, progress: bool, verify: bool, copy: bool = True) -> Path:
    """``copy``: where no hard link of the file can be made, it is copied; else a symbolic link is made."""
    folder, found = gguf_folder(gguf), _identity(gguf)
    if _is_current(folder, found) and not verify:
        return folder
    with locked(folder.name, announce=progress):
        if not _is_current(folder, found) or (verify and not _is_intact(folder, gguf)):
            _convert(gguf, folder, found, progress, copy)
    return folder


def _convert(gguf: Path, folder: Path, found: dict[str, Any], progress: bool, copy: bool) -> None:
    from outrider.weights.hub.convert import convert_gguf

    if progress:
        name = gguf.name if len(gguf.name) <= _LONGEST_NAME else f"{gguf.name[:20]}…"  # a store's file: its digest
        print(f"preparing {name}, once, in {folder.parent}", file=sys.stderr)
    with building(folder) as fresh:
        convert_gguf(gguf, fresh, progress=progress, copy=copy)
        digests = _digests(gguf, progress=progress)
        write_manifest(fresh, found, digests)


def _identity(gguf: Path) -> dict[str, Any]:
    first, *others = map(_identity_of_file, gguf_files(gguf))
    head = find_draft_head(gguf)
    more = ({"others": others} if others else {}) | ({"draft_head": _identity_of_file(head)} if head else {})
    return {"path": str(gguf), "conversion": _CONVERSION} | first | more


def _identity_of_file(file: Path) -> dict[str, Any]:
    stat = file.stat()
    head = sha256_of(file, stop=min(_HEAD, stat.st_size))
    return {"size": stat.st_size, "mtime_ns": stat.st_mtime_ns, "head_sha256": head}


def _digests(gguf: Path, *, progress: bool = False) -> dict[Path, Digest]:
    """A digest of each file of a model."""
    files = gguf_files(gguf)
    with progress_bar(f"reading {gguf.name}", sum(file.stat().st_size for file in files), show=progress) as advance:
        return {file: large_file_digest(file, advance) for file in files}


def _is_current(folder: Path, found: dict[str, Any]) -> bool:
    source = read_source(folder)
    return source is not None and found.items() <= source.items()


def _is_intact(folder: Path, gguf: Path) -> bool:
    try:
        check_files(folder, full=True)
    except ModelFormatError:
        return False
    files = gguf_files(gguf)
    names = [shard_name(Path(GGUF_WEIGHTS).stem, place, len(files)) for place in range(len(files))]
    copies = [(name, file) for name, file in zip(names, files, strict=True) if not file.samefile(folder / name)]
    return all(is_as_written(folder, name, file) for name, file in copies)
