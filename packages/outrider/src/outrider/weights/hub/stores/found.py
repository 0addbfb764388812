"""A model in another program's store, and how the GGUF files of a folder become models."""

from __future__ import annotations

import os
import re
import stat
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from outrider.weights.gguf.brief import type_in_name
from outrider.weights.gguf.shards import first_shard, is_shard, shard_pattern

__all__ = ["COMPANIONS", "STORES", "FoundModel", "Store", "is_companion", "models_of", "unreadable", "walk"]

Store = Literal["ollama", "lm-studio", "hub", "llama.cpp"]
STORES: dict[Store, str] = {
    "ollama": "Ollama's store",
    "lm-studio": "LM Studio's folder",
    "hub": "the hub's cache",
    "llama.cpp": "llama.cpp's cache",
}

COMPANIONS = {
    "mmproj": "*mmproj*", "mtp": "mtp-*", "assistant": "gemma*assistant*", "eagle3": "*eagle3*", "dflash": "*dflash*",
    "dspark": "*dspark*", "imatrix": "*imatrix*",
}  # fmt: skip
"""Patterns of names, in lower case, of GGUF files that are parts for a model beside them, by kind."""

_MOST_ENTRIES = 20_000  # of one store
_DEEPEST = 5  # folders in folders


@dataclass(frozen=True)
class FoundModel:
    """A model of a store. ``problem`` is the reason why it cannot be used; then ``file`` may be None."""

    store: Store
    name: str
    """As every option for a model takes it."""
    file: Path | None
    """Its GGUF file, the first one of several; None for a folder of safetensors files."""
    bytes: int | None = None
    type: str | None = None
    """Of the weights, as the store or the file's name tells it."""
    repo: str = ""
    """The name without a tag or type."""
    aliases: tuple[str, ...] = ()
    problem: str | None = None
    extras: tuple[tuple[str, Path], ...] = ()
    """Files of Ollama's beside the weights, by kind: ``params``, ``system``, ``template``, ``messages``."""

    def has_type(self, wanted: str) -> bool:
        """Whether ``wanted`` names this file of its repository: by type, or by the file's own name."""
        wanted = wanted.lower()
        if wanted in (alias.lower().removeprefix(f"{self.repo.lower()}/") for alias in self.aliases):
            return True
        if self.type is not None and re.fullmatch(rf"(.*[-._])?{re.escape(wanted)}", self.type.lower()):
            return True
        return any(
            re.search(rf"[-._/:]{re.escape(wanted)}(\.gguf)?$", name.lower()) for name in (self.name, *self.aliases)
        )


def is_companion(name: str) -> bool:
    """Whether a GGUF file of this name is a part for a model beside it, and no model."""
    base = name.rsplit("/", 1)[-1].lower()
    return any(fnmatchcase(base, pattern) for pattern in COMPANIONS.values())


def unreadable(store: Store, root: Path, error: OSError) -> FoundModel:
    """The line of a list for a place that cannot be read."""
    return FoundModel(store, str(root), None, problem=f"cannot be read: {error.strerror}")


def walk(store: Store, root: Path) -> Iterator[tuple[str, Path] | FoundModel]:
    """The GGUF files below a folder, by their relative names, in order; problems are models that have one.

    Links to folders are followed; a folder is read once, and no deeper than ``_DEEPEST``.
    """
    left, seen = _MOST_ENTRIES, set[tuple[int, int]]()
    folders = [("", root, 0)]
    while folders:
        prefix, folder, depth = folders.pop()
        try:
            own = folder.stat()
            if (own.st_dev, own.st_ino) in seen:
                continue
            seen.add((own.st_dev, own.st_ino))
            with os.scandir(folder) as found:
                entries = sorted(
                    (entry for entry, _ in zip(found, range(left + 1), strict=False)), key=lambda e: e.name
                )
        except OSError as error:
            yield unreadable(store, folder, error)
            continue
        left -= len(entries)
        if left < 0:
            yield FoundModel(
                store, str(root), None, problem=f"holds more than {_MOST_ENTRIES:,} files: some are not listed"
            )
            return
        for entry in entries:
            name = f"{prefix}{entry.name}"
            if entry.name.endswith(".gguf"):
                yield name, Path(entry.path)
            elif depth < _DEEPEST and not entry.name.startswith(".") and _is_dir(entry):
                folders.append((f"{name}/", Path(entry.path), depth + 1))


def _is_dir(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def models_of(store: Store, repo: str, files: Iterable[tuple[str, Path]]) -> Iterator[FoundModel]:
    """The models among the GGUF files of a repository, named ``repo:TYPE``, or ``repo/file`` if another has the type.

    ``files``: names within the repository, and places.
    """
    parts: dict[str, list[tuple[str, Path]]] = {}
    for name, place in files:
        if not is_companion(name):
            parts.setdefault(shard_pattern(name), []).append((name, place))
    models = [_model(store, repo, group) for group in parts.values()]
    types = Counter(model.type for model in models)
    for model in models:
        own = model.type is not None and types[model.type] == 1
        yield replace(model, name=f"{repo}:{model.type}") if own else model


def _model(store: Store, repo: str, group: list[tuple[str, Path]]) -> FoundModel:
    """A model of one file or of several parts, named by its file."""
    name, place = min(group)
    size, problem = 0, None
    for _, each in group:
        found = size_of(each)
        if isinstance(found, str):
            problem = problem or found
        else:
            size += found
    stem = name.removesuffix(".gguf")
    if is_shard(place.name):
        count = int(stem[-5:])
        if len(group) < count:
            problem = problem or f"{count - len(group)} of its {count} files are missing"
        stem = stem[: -len("-00001-of-00001")]
    full = f"{repo}/{name}"
    return FoundModel(store, full, first_shard(place), size, type_in_name(stem), repo, (full,), problem)


def size_of(path: Path) -> int | str:
    """Bytes of a file, or the reason why it cannot be read."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return f"{path} leads nowhere" if path.is_symlink() else f"{path} is missing"
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    if not stat.S_ISREG(found.st_mode):
        return f"{path} is no file"
    if not os.access(path, os.R_OK):
        return f"{path} cannot be read: it belongs to another user"
    return found.st_size
