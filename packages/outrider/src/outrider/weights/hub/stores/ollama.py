"""Ollama's store.

manifests/HOST/NAMESPACE/MODEL/TAG    JSON: the digests of a model's layers; manifests-v2/ in newer versions
blobs/sha256-...                      the layers: the GGUF file, a vision tower, a template, ...
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from outrider.weights.hub.stores.found import FoundModel, size_of, unreadable

__all__ = ["ollama_models", "ollama_roots"]

SYSTEM = Path("/usr/share/ollama/.ollama/models")
"""The store of Ollama as a service of the system."""
_MANIFESTS = "manifests-v2", "manifests"
_LIST = "application/vnd.ollama.manifest.list.v2+json"
_MODEL, _ADAPTER = "application/vnd.ollama.image.model", "application/vnd.ollama.image.adapter"
_PUBLIC = ("registry.ollama.ai", "ollama.com")
_DIGEST = re.compile(r"sha256[:-]([0-9a-fA-F]{64})")
_RUNNERS = ("", "ollama", "llamacpp")  # of the manifests in a list: those whose model is a GGUF file
_MOST_BYTES, _MOST_MODELS = 1 << 20, 10_000


class _BrokenError(Exception):
    """The reason why a manifest leads to no model."""


def ollama_roots() -> list[Path]:
    """The places of stores: ``OLLAMA_MODELS``, the user's and the system's."""
    chosen = os.environ.get("OLLAMA_MODELS")
    roots = [Path(chosen).expanduser()] if chosen else []
    return [*roots, Path.home() / ".ollama" / "models", SYSTEM]


def ollama_models() -> Iterator[FoundModel]:
    """The models of all stores, in the order of their names."""
    seen = set[Path]()
    for place in ollama_roots():
        try:
            os.scandir(place).close()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:  # that of a service belongs to a user of its own
            yield unreadable("ollama", place, error)
            continue
        root, known = place.resolve(), set[str]()
        if root in seen:
            continue
        seen.add(root)
        for folder in _MANIFESTS:
            for parts, path in _manifests(root, root / folder):
                model = path if isinstance(path, FoundModel) else _model(root, parts, path)
                if model.name.lower() not in known:
                    known.add(model.name.lower())
                    yield model


def _manifests(root: Path, folder: Path) -> Iterator[tuple[tuple[str, ...], Path | FoundModel]]:
    """The parts of a model's name, and its manifest."""
    if not os.path.isdir(folder):
        return
    try:
        os.scandir(folder).close()
        paths = sorted(path for path, _ in zip(folder.glob("*/*/*/*"), range(_MOST_MODELS), strict=False))
    except OSError as error:
        yield (), unreadable("ollama", folder, error)
        return
    for path in paths:
        parts = path.relative_to(folder).parts
        if not any(part.startswith(".") for part in parts) and not os.path.isdir(path):
            yield parts, path


def _model(root: Path, parts: tuple[str, ...], manifest: Path) -> FoundModel:
    names = _names(*parts)
    found = FoundModel("ollama", names[0], None, repo=names[0].rpartition(":")[0] or names[0], aliases=names[1:])
    try:
        return _read(root, found, manifest)
    except _BrokenError as error:
        return FoundModel("ollama", found.name, None, repo=found.repo, aliases=found.aliases, problem=str(error))


def _names(host: str, namespace: str, model: str, tag: str) -> tuple[str, ...]:
    """The names of a model, the shortest with its tag first."""
    own = f"{namespace}/{model}"
    short = [model] if host.lower() in _PUBLIC and namespace.lower() == "library" else []
    full = [own] if host.lower() in _PUBLIC else [f"{host}/{own}", own]
    names = [*short, *full, *(f"{public}/{own}" for public in _PUBLIC if host.lower() in _PUBLIC)]
    untagged = names if tag.lower() == "latest" else []
    return (*(f"{name}:{tag}" for name in names), *untagged)


def _read(root: Path, found: FoundModel, path: Path) -> FoundModel:
    manifest = _json(path, "its manifest")
    if manifest.get("mediaType") == _LIST:
        manifest = _of_list(root, manifest)
    layers = manifest.get("layers")
    kept = [layer for layer in layers if isinstance(layer, dict)] if isinstance(layers, list) else []
    models = [layer for layer in kept if layer.get("mediaType") == _MODEL]
    config = _config(root, manifest)
    if not models and config.get("remote_host"):
        raise _BrokenError("it runs at Ollama's, and has no weights here")
    if not models or config.get("model_format", "gguf") != "gguf":
        raise _BrokenError("it has no GGUF file")
    if any(layer.get("mediaType") == _ADAPTER for layer in kept):
        raise _BrokenError("it has an adapter, which would not be applied: give the model itself, and --lora-modules")
    if len(models) > 1:
        raise _BrokenError(f"it has {len(models)} GGUF files, and one is read")
    file, said = _blob(root, models[0].get("digest")), models[0].get("size")
    size = size_of(file)
    if isinstance(size, str):
        raise _BrokenError(f"{size}: pull it again in Ollama")
    if isinstance(said, int) and size != said:
        raise _BrokenError(f"{file} has {size:,} bytes of {said:,}: pull it again in Ollama")
    kind = config.get("file_type")
    known = kind if isinstance(kind, str) and kind and kind.lower() != "unknown" else None
    return FoundModel(
        "ollama", found.name, file, size, known, found.repo, found.aliases, extras=tuple(_extras(root, kept))
    )


def _extras(root: Path, layers: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Path]]:
    """The blobs of what is said beside the weights; damaged ones are left out."""
    for layer in layers:
        kind = str(layer.get("mediaType")).removeprefix("application/vnd.ollama.image.")
        if kind in ("params", "system", "template", "messages"):
            with suppress(_BrokenError):
                yield kind, _blob(root, layer.get("digest"))


def _of_list(root: Path, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest of a GGUF model in a list of manifests, which holds it or names its blob."""
    children = manifest.get("manifests")
    for runner in _RUNNERS:
        for child in children if isinstance(children, list) else []:
            if isinstance(child, dict) and str(child.get("runner", "")).lower() == runner:
                return child if child.get("layers") else _json(_blob(root, child.get("digest")), "its manifest")
    raise _BrokenError("it has no GGUF file")


def _config(root: Path, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The model's own description; empty if it is damaged, for the file tells as much."""
    config = manifest.get("config")
    try:
        return _json(_blob(root, config.get("digest") if isinstance(config, dict) else None), "")
    except _BrokenError:
        return {}


def _blob(root: Path, digest: object) -> Path:
    found = _DIGEST.fullmatch(digest) if isinstance(digest, str) else None
    if found is None:
        raise _BrokenError("its manifest is damaged: it names no blob")
    return root / "blobs" / f"sha256-{found[1].lower()}"


def _json(path: Path, what: str) -> dict[str, Any]:
    size = size_of(path)
    if isinstance(size, str):
        raise _BrokenError(size)
    if size > _MOST_BYTES:
        raise _BrokenError(f"{what} is damaged: it has {size:,} bytes")
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise _BrokenError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise _BrokenError(f"{what} is damaged: {path} is no JSON") from None
    if not isinstance(value, dict):
        raise _BrokenError(f"{what} is damaged: {path} is no JSON object")
    return value
