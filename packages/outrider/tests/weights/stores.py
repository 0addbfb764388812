"""Stores of other programs with tiny files, and a home of its own that has none but those."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from outrider.native.library import library

_VARIABLES = (
    *("OLLAMA_MODELS", "LLAMA_CACHE", "HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"),
    *("XDG_CACHE_HOME", "XDG_CONFIG_HOME"),
)


def empty_home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home in which no program has put models yet."""
    library()  # from the real cache, where it is compiled already
    home = folder / "home"
    home.mkdir(exist_ok=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr("outrider.weights.hub.stores.ollama.SYSTEM", folder / "no such store")
    for name in _VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return home


def header(
    architecture: str = "llama", *, file_type: int | None = None, tokens: Sequence[str] = ("a",), last: bool = True
) -> bytes:
    """The header of a GGUF file without tensors; ``last``: the type stands behind the vocabulary."""
    kind = [] if file_type is None else [_key("general.file_type", 4, struct.pack("<I", file_type))]
    strings = b"".join(map(_string, tokens))
    keys = [
        _key("general.architecture", 8, _string(architecture)),
        *([] if last else kind),
        _key("tokenizer.ggml.tokens", 9, struct.pack("<IQ", 8, len(tokens)) + strings),
        *(kind if last else []),
    ]
    return b"GGUF" + struct.pack("<IQQ", 3, 0, len(keys)) + b"".join(keys)


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _key(name: str, kind: int, value: bytes) -> bytes:
    return _string(name) + struct.pack("<I", kind) + value


def write(path: Path, content: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def blob(store: Path, content: bytes) -> dict[str, Any]:
    """A layer of an Ollama manifest, whose blob is in the store."""
    digest = hashlib.sha256(content).hexdigest()
    write(store / "blobs" / f"sha256-{digest}", content)
    return {"digest": f"sha256:{digest}", "size": len(content)}


def ollama(
    store: Path,
    name: str,
    content: bytes,
    *,
    host: str = "registry.ollama.ai/library",
    folder: str = "manifests",
    config: Mapping[str, Any] | None = None,
    kinds: Sequence[str] = (),
    extras: Mapping[str, bytes] | None = None,
) -> Path:
    """Put a model into Ollama's store, and return its manifest; ``kinds``: further layers, ``extras`` with contents."""
    layers = [{"mediaType": "application/vnd.ollama.image.model"} | blob(store, content)]
    layers += [{"mediaType": f"application/vnd.ollama.image.{kind}"} | blob(store, kind.encode()) for kind in kinds]
    layers += [{"mediaType": f"application/vnd.ollama.image.{k}"} | blob(store, v) for k, v in (extras or {}).items()]
    own = blob(store, json.dumps({"model_format": "gguf", "file_type": "Q4_K_M"} | dict(config or {})).encode())
    manifest = {"schemaVersion": 2, "config": own, "layers": layers}
    model, tag = name.split(":")
    return write(store / folder / host / model / tag, json.dumps(manifest))
