"""Opens the folder of saved sessions for a model: ``EngineConfig.session_dir``."""

from __future__ import annotations

import hashlib
import json
import secrets
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from outrider.cache import CacheSpec
from outrider.cache.sessions import SessionPlace, SessionStore
from outrider.cache.sessions.sealing import derive
from outrider.config.engine import EngineConfig
from outrider.errors import ConfigError, ModelFormatError
from outrider.models.base import LoadedModel
from outrider.models.batch import ForwardBatch, Span
from outrider.models.native_llama import NativeLlamaModel
from outrider.native.library import ABI
from outrider.utils.json_files import read_json_object
from outrider.utils.system import private_file
from outrider.weights.hub.checksums import large_file_digest
from outrider.weights.hub.manifest import MANIFEST

__all__ = ["SessionStore", "domain_secret", "open_sessions"]

_PROBE = 24  # tokens
_WEIGHTS = (".safetensors", ".gguf", ".bin")


def open_sessions(
    config: EngineConfig, folder: Path, model: LoadedModel, weights: str | None = None
) -> SessionStore | None:
    """The store that ``config`` asks for; None if it asks for none. ``weights``: a digest of those not in ``folder``.

    Raises ConfigError if the folder cannot be written, the key cannot be used, or the model's rows cannot be saved.
    """
    if config.session_dir is None:
        return None
    if not isinstance(model, NativeLlamaModel) or config.tensor_parallel_size > 1:
        raise ConfigError(f"session_dir={config.session_dir!r} needs one process of the native library: leave it out")
    place, identity = SessionPlace.parse(config.session_dir), _identity(model, weights or _weights_digest(folder))
    return SessionStore(place.folder, identity, int(config.session_gb * 1e9), place.key)


def domain_secret(session_dir: str) -> bytes:
    """The secret by which a server names the domains of its callers, for as long as their sessions last.

    It comes from the key, or without one from a file in the folder. Raises ConfigError if that cannot be written.
    """
    place = SessionPlace.parse(session_dir)
    if place.key is not None:
        return derive(place.key, b"domains")
    path = place.folder / "secret"
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with suppress(FileExistsError), open(private_file(path, "x"), "wb") as file:
            file.write(secrets.token_bytes(32))
        secret = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"session_dir={session_dir!r} cannot be written: {error.strerror or error}") from None
    if len(secret) != 32:
        raise ConfigError(f"{path} is damaged: remove it, and sessions begin anew")
    return secret


def _identity(model: NativeLlamaModel, weights: Any) -> str:
    """A digest of all that the bits of a row depend on: weights, precision, and how the library computes.

    The last is told by the rows of a few tokens, whose bits are the same on every instruction set.
    """
    facts = [
        version("outrider-core"),
        ABI,
        repr(model.config),
        model.precision,
        str(model.cache_dtype),
        weights,
    ]
    digest = hashlib.blake2b(json.dumps(facts).encode(), digest_size=32)
    count = min(_PROBE, model.config.max_seq_len)
    cache = model.new_cache(CacheSpec(max_seq_len=count, prefix_reuse=False))
    slot = cache.allocate()
    cache.extend(slot, count)
    tokens = [7 * i % model.config.vocab_size for i in range(count)]
    model.forward(ForwardBatch(tokens, range(count), (Span(slot, 0, count),), None), cache)
    for array in cache.pool.arrays:
        digest.update(array[:count].tobytes())
    return digest.hexdigest()


def _weights_digest(folder: Path) -> list[Any]:
    """Digests of a model's files of weights: the manifest's, or those of all their bytes."""
    try:
        files = read_json_object(folder / MANIFEST)["files"]
        return [[name, files[name]] for name in sorted(files) if name.endswith(_WEIGHTS)]
    except (ModelFormatError, OSError, KeyError, TypeError):
        found = sorted(path for path in folder.iterdir() if path.suffix in _WEIGHTS)
        return [[path.name, large_file_digest(path)] for path in found]
