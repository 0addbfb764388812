"""Segments: up to 64 rows of a sequence, or its recurrent state, in a file of safetensors.

A segment is named by the digest of all tokens up to its end, and of the domain that they belong to. So equal names mean
equal contents, and one file serves all conversations that begin alike.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from outrider.cache.blocks import Digest, chain_digests, key_bytes
from outrider.errors import ModelFormatError

__all__ = ["SEGMENT", "Segment", "chain", "child_digest", "read_arrays", "read_head", "write_segment"]

SEGMENT = 64
"""Tokens of a full segment."""
_FORMAT = "outrider-session-1"
_SUFFIX = ".safetensors"


@dataclass
class Segment:
    """What is known of a file without reading its arrays."""

    digest: Digest
    parent: Digest  # of the rows before its own
    start: int  # the first of its rows
    tokens: tuple[int, ...]  # keys of the prefix cache, one a row
    is_state: bool = False  # it holds the recurrent state of ``start + len(tokens)`` rows, and no rows
    size: int = 0  # bytes of its file
    used: float = field(default=0.0, compare=False)  # seconds since 1970

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)

    @property
    def file_name(self) -> str:
        return f"{self.digest.hex()}{'-state' if self.is_state else ''}{_SUFFIX}"


def child_digest(parent: Digest, tokens: Sequence[int]) -> Digest:
    """The digest of the rows before a segment and its own, as ``chain_digests`` has it of full segments."""
    return hashlib.blake2b(parent + b"".join(map(key_bytes, tokens)), digest_size=16).digest()


def chain(tokens: Sequence[int], salt: str) -> list[Digest]:
    """The parents of the segments of ``tokens``: nobody finds one without the salt of its domain."""
    root = hashlib.blake2b(salt.encode(), digest_size=16).digest()
    return [root, *chain_digests(tokens, SEGMENT, salt)]


def write_segment(folder: Path, segment: Segment, arrays: Sequence[NDArray[Any]], model: str) -> int:
    """Write a segment's file, whole or not at all; returns its bytes. Raises OSError."""
    named = {str(i): np.ascontiguousarray(array) for i, array in enumerate(arrays)}
    facts = {
        "format": _FORMAT,
        "model": model,
        "parent": segment.parent.hex(),
        "start": str(segment.start),
        "tokens": json.dumps(segment.tokens),
        "state": str(int(segment.is_state)),
        "checksum": str(_checksum(named.values())),
    }
    content = save(named, facts)
    path = folder / segment.file_name
    fresh = path.with_suffix(f".{os.getpid()}.part")
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
    os.replace(fresh, path)
    return len(content)


def read_head(path: Path, model: str) -> Segment:
    """What a file says of itself. Raises ``ModelFormatError`` if it is damaged, or of another model or version."""
    return _read(path, model, ())[0]


def read_arrays(path: Path, segment: Segment, model: str, like: Sequence[tuple[tuple[int, ...], Any]]) -> list[Any]:
    """The arrays of a file: ``like`` has the shape and the dtype of each.

    Raises ``ModelFormatError`` if the file is missing or damaged, or holds other numbers.
    """
    found, arrays, checksum = _read(path, model, like)
    if found != segment:
        raise ModelFormatError(f"{path} is not what it was")
    if any((a.shape, a.dtype) != (shape, np.dtype(dtype)) for a, (shape, dtype) in zip(arrays, like, strict=True)):
        raise ModelFormatError(f"{path} holds rows of another size")
    if _checksum(arrays) != checksum:
        raise ModelFormatError(f"{path} is damaged: its checksum differs")
    return arrays


def _read(path: Path, model: str, like: Sequence[Any]) -> tuple[Segment, list[Any], int]:
    """What a file says of itself, as many arrays as ``like`` has, and the checksum that it gives for them."""
    try:
        with safe_open(path, framework="numpy") as file:
            facts = file.metadata() or {}
            arrays = [file.get_tensor(str(i)) for i in range(len(like))]
        if facts.get("format") != _FORMAT or facts.get("model") != model:
            raise ModelFormatError(f"{path} is of another version or model")
        tokens = tuple(map(int, json.loads(facts["tokens"])))
        parent, is_state, stat = bytes.fromhex(facts["parent"]), facts["state"] == "1", path.stat()
        digest = child_digest(parent, tokens)
        found = Segment(digest, parent, int(facts["start"]), tokens, is_state, stat.st_size, stat.st_mtime)
        checksum = int(facts["checksum"])
    except (OSError, SafetensorError, KeyError, ValueError, TypeError, OverflowError) as error:
        raise ModelFormatError(f"{path} is damaged: {error}") from None
    if not found.tokens or found.start < 0 or path.name != found.file_name:
        raise ModelFormatError(f"{path} does not hold what its name says")
    return found, arrays, checksum


def _checksum(arrays: Any) -> int:
    value = 0
    for array in arrays:
        value = zlib.crc32(memoryview(array.reshape(-1).view(np.uint8)), value)
    return value
