"""The stores that keep repositories of the hub: LM Studio's folders, the hub's cache and llama.cpp's.

LM Studio    ORG/NAME/FILE.gguf
hub          models--ORG--NAME/snapshots/COMMIT/FILE.gguf, links to blobs; refs/main names the newest
llama.cpp    as the hub's, or before: manifest=ORG=NAME=TAG.json and ORG_NAME_FILE.gguf
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from outrider.weights.gguf.shards import first_shard
from outrider.weights.hub.stores.found import FoundModel, Store, models_of, size_of, unreadable, walk

__all__ = ["hub_models", "hub_root", "llama_cpp_models", "lm_studio_models"]

_COMMIT = re.compile(r"[0-9a-f]{40}")
_MOST_BYTES = 1 << 20


def _variable(name: str) -> Path | None:
    value = os.environ.get(name)
    return Path(value).expanduser() if value else None


def _cache_home() -> Path:
    return _variable("XDG_CACHE_HOME") or Path.home() / ".cache"


def _text(path: Path) -> str:
    """The beginning of a small file; empty if it cannot be read."""
    try:
        if not path.is_file():
            return ""
        with path.open("rb") as file:
            return file.read(_MOST_BYTES).decode(errors="replace")
    except OSError:
        return ""


def _object(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(_text(path))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _lm_studio_roots() -> list[Path]:
    """The folders of models that LM Studio's settings name, else its usual ones."""
    homes = [Path.home() / ".lmstudio", Path.home() / ".cache" / "lm-studio"]
    pointer = _text(Path.home() / ".lmstudio-home-pointer").strip()
    homes = [Path(pointer).expanduser(), *homes] if pointer else homes
    config = (_variable("XDG_CONFIG_HOME") or Path.home() / ".config") / "LM Studio"
    settings = [_object(folder / "settings.json") or {} for folder in (*homes, config)]
    chosen = [said["downloadsFolder"] for said in settings if isinstance(said.get("downloadsFolder"), str)]
    roots = [Path(each).expanduser() for each in chosen if each] + [home / "models" for home in homes]
    return list(dict.fromkeys(root.resolve() for root in roots if os.path.isdir(root)))


def lm_studio_models() -> Iterator[FoundModel]:
    """The models in LM Studio's folders."""
    for root in _lm_studio_roots():
        repos: dict[str, list[tuple[str, Path]]] = {}
        for found in walk("lm-studio", root):
            if isinstance(found, FoundModel):
                yield found
                continue
            name, place = found
            parts = name.split("/")
            depth = min(2, len(parts) - 1)
            repos.setdefault("/".join(parts[:depth]) or "lm-studio", []).append(("/".join(parts[depth:]), place))
        for repo in sorted(repos):
            yield from models_of("lm-studio", repo, repos[repo])


def hub_root() -> Path:
    """The folder of the hub's cache, as ``huggingface_hub`` chooses it."""
    home = _variable("HF_HOME") or _cache_home() / "huggingface"
    return _variable("HF_HUB_CACHE") or _variable("HUGGINGFACE_HUB_CACHE") or home / "hub"


def hub_models(root: Path | None = None, store: Store = "hub") -> Iterator[FoundModel]:
    """The models in a cache of the hub's layout: GGUF files, and folders with safetensors files."""
    root = root or hub_root()
    try:
        folders = sorted(root.glob("models--*--*")) if root.is_dir() else []
    except OSError as error:
        yield unreadable(store, root, error)
        return
    for folder in folders:
        yield from _of_repo(store, folder, folder.name.removeprefix("models--").replace("--", "/"))


def _of_repo(store: Store, folder: Path, repo: str) -> Iterator[FoundModel]:
    files: dict[str, Path] = {}
    folders = list[Path]()
    for snapshot in _snapshots(folder):
        for found in walk(store, snapshot):
            if isinstance(found, FoundModel):
                yield found
            else:
                files.setdefault(*found)
        if any(snapshot.glob("*.safetensors")):
            folders.append(snapshot)
    yield from models_of(store, repo, files.items())
    if folders:
        sizes = [size_of(path) for path in folders[0].iterdir()]
        size = sum(each for each in sizes if isinstance(each, int))
        yield FoundModel(store, repo, None, size, repo=repo, aliases=(str(folders[0]),))


def _snapshots(folder: Path) -> list[Path]:
    """The snapshots of a repository: the one of ``refs/main`` first, then the newest."""
    main = _text(folder / "refs" / "main").strip()
    try:
        found = [each for each in (folder / "snapshots").iterdir() if each.is_dir()]
        return sorted(found, key=lambda each: (each.name != main, -each.stat().st_mtime))
    except OSError:
        return []


def llama_cpp_models() -> Iterator[FoundModel]:
    """The models in llama.cpp's cache, of both layouts."""
    usual = Path.home() / "Library" / "Caches" if sys.platform == "darwin" else _cache_home()
    root = _variable("LLAMA_CACHE") or usual / "llama.cpp"
    if not os.path.isdir(root):
        return
    if root.resolve() != hub_root().resolve():
        yield from hub_models(root, "llama.cpp")
    files: dict[str, Path] = {}
    try:
        names = sorted(os.listdir(root))
    except OSError as error:
        yield unreadable("llama.cpp", root, error)
        return
    files = {name: root / name for name in names if name.endswith(".gguf")}
    claimed = set[str]()
    for name in names:
        if name.startswith("manifest=") and name.endswith(".json"):
            for model in _of_manifest(root / name, files):
                if model.file is None or model.file.name not in claimed:
                    claimed.add(model.file.name if model.file is not None else name)
                    yield model
    others = [(name, place) for name, place in files.items() if first_shard(place).name not in claimed]
    for model in models_of("llama.cpp", "llama.cpp", others):
        yield replace(model, name=model.aliases[0].partition("/")[2], repo="")


def _of_manifest(path: Path, files: dict[str, Path]) -> Iterator[FoundModel]:
    """The model of ``manifest=ORG=NAME=TAG.json``, whose parts lie flat beside it."""
    parts = path.name.removesuffix(".json").split("=")
    repo, tag = "/".join(parts[1:3]), parts[3] if len(parts) > 3 else ""
    said = (_object(path) or {}).get("ggufFile")
    file = said.get("rfilename") if isinstance(said, dict) else None
    if not isinstance(file, str) or len(parts) < 4:
        yield FoundModel("llama.cpp", f"{repo}:{tag}", None, repo=repo, problem=f"{path} is damaged: it names no file")
        return
    before = f"{repo}_".replace("/", "_")
    flat = f"{before}{file}".replace("/", "_")
    own = [(name.removeprefix(before), place) for name, place in files.items() if name == flat or _is_part(name, flat)]
    if not own:
        yield FoundModel("llama.cpp", f"{repo}:{tag}", None, repo=repo, problem=f"{path.parent / flat} is missing")
    for model in models_of("llama.cpp", repo, own):
        wanted = said.get("size") if isinstance(said, dict) and len(own) == 1 else None
        short = isinstance(wanted, int) and model.bytes != wanted and model.problem is None
        problem = f"{model.file} has {model.bytes:,} bytes of {wanted:,}" if short else model.problem
        yield replace(model, problem=problem)


def _is_part(name: str, other: str) -> bool:
    """Whether two names are of parts of one model."""
    return first_shard(Path(name)) == first_shard(Path(other))
