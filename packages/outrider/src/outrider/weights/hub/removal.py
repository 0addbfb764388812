"""Removes models from the caches."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from outrider.errors import InvalidRequestError, ModelNotFoundError
from outrider.utils.json_files import shown
from outrider.utils.user_cache import cache_root, locked
from outrider.weights.hub.builtin import BUILTINS, folder_of
from outrider.weights.hub.catalog import found_model, gguf_folder, lone_gguf, real_place
from outrider.weights.hub.manifest import read_source
from outrider.weights.hub.refs import parse_hub_ref
from outrider.weights.packed import delete_folder, delete_packed, packed_folder, packed_models


@dataclass(frozen=True)
class Removed:
    """The removed files."""

    name: str
    folder: Path
    bytes: int


def remove(ref: str) -> Removed:
    """Delete a model from the caches: a built-in one with its trained drafts, a converted ``.gguf`` file, or a hub id.

    A ``.gguf`` file itself stays, and so does every folder outside the caches, other programs' stores among
    them. Their packed weights go.

    Raises:
        InvalidRequestError: ``ref`` is a folder of the user's own, of which nothing is packed.
        ModelNotFoundError: no cache holds the model.
    """
    path = Path(ref).expanduser()
    if ref in BUILTINS:
        folder = folder_of(BUILTINS[ref])
    elif path.suffix == ".gguf":
        folder = gguf_folder(real_place(path))
    elif ref and path.is_dir() and (inside := lone_gguf(path)) is not None:
        folder = gguf_folder(inside)
    elif ref and packed_folder(path).is_dir():
        return Removed(ref, packed_folder(path), delete_packed(path))
    elif ref and path.is_dir() and cache_root() not in path.resolve().parents:
        raise InvalidRequestError(f"{ref} is a folder of your own, which no cache holds: delete it yourself")
    elif (found := found_model(ref, hub=False)) is not None and found.file is not None:
        folder = gguf_folder(real_place(found.file))
        if not folder.is_dir():
            raise ModelNotFoundError(f"nothing was made of {shown(ref)}: remove it in the program that keeps it")
    else:
        return _from_hub(ref)
    with locked(folder.name):
        if not folder.is_dir():
            raise _unknown(ref)
        size = delete_folder(folder) + delete_packed(folder)
    if ref in BUILTINS:
        size += delete_folder(cache_root() / "drafts" / ref)
    return Removed(ref, folder, size)


def _from_hub(ref: str) -> Removed:
    from huggingface_hub import CacheNotFound, scan_cache_dir

    try:
        cache = scan_cache_dir()
    except CacheNotFound:
        raise _unknown(ref) from None
    hub = parse_hub_ref(ref)
    for repo in cache.repos:
        if hub is not None and repo.repo_type == "model" and repo.repo_id == hub.repo:
            cache.delete_revisions(*(revision.commit_hash for revision in repo.revisions)).execute()
            packed = _remove_made(repo.repo_path.resolve())
            return Removed(ref, repo.repo_path, repo.size_on_disk + packed)
    raise _unknown(ref)


def _remove_made(repo: Path) -> int:
    """Remove the folders made from the GGUF files of a repository of the hub; returns the bytes of packed weights."""
    size = sum(delete_packed(folder) for folder in packed_models() if repo in folder.parents)
    for folder in (cache_root() / "gguf").glob("[!.]*"):
        if repo in Path(str((read_source(folder) or {}).get("path"))).parents:
            with locked(folder.name):
                shutil.rmtree(folder)
            size += delete_packed(folder)
    return size


def _unknown(ref: str) -> ModelNotFoundError:
    return ModelNotFoundError(f"no cache holds {shown(ref)}: `outrider models list` names what there is")
