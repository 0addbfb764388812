"""Names of a model's files and precision that are equal on every machine."""

from __future__ import annotations

import hashlib
from pathlib import Path

from outrider.models.base import LoadedModel
from outrider.weights.hub.catalog import resolve

__all__ = ["add_model_files", "model_digest", "precision_name"]

_EDGE = 1 << 20  # bytes read at either end of a large file


def model_digest(model: str, weights: str = "") -> str:
    """16 digits of a hash of a model's files, and of ``weights`` (``add_model_files``): equal on every machine.

    Of files beyond 2 MB the size and both ends are hashed: reading a large model whole would take a minute of start.
    """
    digest = hashlib.sha256()
    add_model_files(digest, model, weights)
    return digest.hexdigest()[:16]


def add_model_files(digest: hashlib._Hash, model: str, weights: str = "") -> None:
    """Add the files that decide a model's answers to a hash.

    ``weights``: a hash of weights that have taken the place of those in the files; "": none have.
    """
    kinds = (".json", ".jinja") if weights else (".json", ".safetensors", ".gguf", ".jinja")
    for path in sorted(resolve(model).iterdir()):
        if path.suffix in kinds and path.name != "outrider.json":
            digest.update(path.name.encode() + _ends(path))
    digest.update(weights.encode())


def precision_name(model: LoadedModel) -> str:
    """The types of a model's weights and cache, on which its tokens depend."""
    return f"{model.precision}, cache {str(model.cache_dtype).removeprefix('torch.')}"


def _ends(path: Path) -> bytes:
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        digest.update(file.read(_EDGE))
        if size > 2 * _EDGE:
            file.seek(size - _EDGE)
        digest.update(file.read())
    return digest.digest()
