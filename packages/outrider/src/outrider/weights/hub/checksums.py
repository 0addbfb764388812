"""Checksums of large files, by all threads at the speed of reading: SHA-256 would take half of a first start."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

from outrider.native.library import library
from outrider.native.pieces import checksum
from outrider.native.processor import num_threads

__all__ = ["CHECKSUM", "SHA256", "checksum_of", "large_file_digest", "sha256_of"]

CHECKSUM, SHA256 = "checksum", "sha256"
"""Names of the two kinds of digests in manifests."""

_BLOCK = 1 << 20
"""Bytes read at a time: they are still in the cache of a core when their checksum is taken."""
_SHARE = 32 << 20
"""Bytes that a thread takes at a time."""

Tell = Callable[[int], None]


def sha256_of(path: Path, on_bytes: Tell = lambda _: None, *, stop: int | None = None) -> str:
    """The hexadecimal SHA-256 of a file, or of its first ``stop`` bytes."""
    digest = hashlib.sha256()
    left = path.stat().st_size if stop is None else stop
    with path.open("rb") as file:
        while left and (block := file.read(min(_BLOCK, left))):
            digest.update(block)
            left -= len(block)
            on_bytes(len(block))
    return digest.hexdigest()


def checksum_of(path: Path, on_bytes: Tell = lambda _: None) -> str:
    """The digest of the checksums of 64 bits of each megabyte of a file, in hexadecimal. It tells damage, not malice.

    Raises ``ConfigError`` without the native library.
    """
    size, local, digest = path.stat().st_size, threading.local(), hashlib.sha256()
    starts = range(0, size, _SHARE)
    with ThreadPoolExecutor(max(1, min(num_threads(), len(starts))), "outrider-checksum") as pool:
        for start, sums in zip(starts, pool.map(partial(_sums, path, local), starts), strict=True):
            digest.update(sums)
            on_bytes(min(_SHARE, size - start))
    digest.update(size.to_bytes(8, "little"))
    return digest.hexdigest()


def large_file_digest(path: Path, on_bytes: Tell = lambda _: None) -> tuple[str, str]:
    """The kind of digest that this installation takes of large files, and that of ``path``."""
    return (SHA256, sha256_of(path, on_bytes)) if library() is None else (CHECKSUM, checksum_of(path, on_bytes))


def _sums(path: Path, local: threading.local, start: int) -> bytes:
    if not hasattr(local, "memory"):
        local.memory = np.empty(_BLOCK, np.uint8)
    return b"".join(checksum(local.memory[:size]).to_bytes(8, "little") for size in _reads(path, local.memory, start))


def _reads(path: Path, memory: np.ndarray[tuple[int], np.dtype[np.uint8]], start: int) -> Iterator[int]:
    """Read a share of a file into ``memory``, a block at a time; the bytes of each."""
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        for _ in range(_SHARE // _BLOCK):
            size = 0
            while size < _BLOCK and (more := file.readinto(memory[size:].data)):
                size += more
            if size:
                yield size
