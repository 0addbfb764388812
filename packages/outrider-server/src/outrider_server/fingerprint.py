"""``system_fingerprint``: a name of everything but seed and request that decides the text."""

from __future__ import annotations

import hashlib
import platform
import sys
from pathlib import Path

from outrider import __version__
from outrider.llm import LLM
from outrider.native.processor import processor_name
from outrider.weights.hub.catalog import resolve

_EDGE = 1 << 20  # bytes read at either end of a large file


def fingerprint(llm: LLM) -> str:
    """``fp_`` and 16 digits of a hash of the model's files, adapters, precision, this version, torch and processor.

    Of files beyond 2 MB the size and both ends are hashed: reading a large model whole would take a minute of start.
    """
    digest = hashlib.sha256()
    for part in (__version__, _torch_version(), platform.machine(), processor_name()):
        digest.update(f"{part}\n".encode())
    digest.update(f"{llm.config.dtype} {llm.model.dtype} {llm.model.cache_dtype} {llm.model.device}\n".encode())
    if llm.speculation.verifier != "matching":  # matching gives the same text however it drafts
        digest.update(repr(llm.speculation).encode())
    for name, key in sorted(llm.adapters.keys.items()):
        digest.update(f"{name} {key}\n".encode())
    _add_files(digest, llm)
    return f"fp_{digest.hexdigest()[:16]}"


def model_digest(llm: LLM) -> str:
    """16 digits of a hash of the model's files, as ``fingerprint`` reads them: equal on every machine."""
    digest = hashlib.sha256()
    _add_files(digest, llm)
    return digest.hexdigest()[:16]


def _add_files(digest: hashlib._Hash, llm: LLM) -> None:
    folder = resolve(llm.config.model)
    for path in sorted(folder.iterdir()):
        if path.suffix in (".json", ".safetensors", ".gguf", ".jinja") and path.name != "outrider.json":
            digest.update(path.name.encode() + _ends(path))


def _torch_version() -> str:
    """Of the torch that computes, if it does: its kernels round in their own way."""
    return str(getattr(sys.modules.get("torch"), "__version__", ""))


def _ends(path: Path) -> bytes:
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        digest.update(file.read(_EDGE))
        if size > 2 * _EDGE:
            file.seek(size - _EDGE)
        digest.update(file.read())
    return digest.digest()
