"""Files of segments: safetensors, as they are or sealed."""

from __future__ import annotations

import json
import math
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from outrider.cache.sessions.sealing import Sealer
from outrider.cache.sessions.segments import Segment, child_digest
from outrider.errors import ModelFormatError
from outrider.utils.system import private_file

__all__ = ["PLAIN", "SEALED", "SegmentFiles", "is_finite"]

_FORMAT = "outrider-session-1"
PLAIN = ".safetensors"
SEALED = ".sealed"
_NAMES = {np.dtype(np.uint16): "U16", np.dtype(np.int8): "I8", np.dtype(np.float32): "F32"}  # of caches' types
_EXPONENT = np.uint16(0x7F80)  # of a bfloat16 that is not finite
_LENGTH = 8  # bytes before the head of a file of safetensors
_MOST_HEAD = 1 << 20  # bytes: 64 keys of positions in images are far less


class SegmentFiles:
    """Reads and writes the files of one model in one folder."""

    def __init__(self, folder: Path, model: str, sealer: Sealer | None) -> None:
        """``sealer``: encrypts the files; None: they are not encrypted."""
        self.folder, self._model, self._sealer = folder, model, sealer
        self._suffix = PLAIN if sealer is None else SEALED

    def paths(self) -> Iterator[Path]:
        """All files of segments, whether they can be used or not."""
        return self.folder.glob(f"*{self._suffix}")

    def path(self, segment: Segment) -> Path:
        stem = segment.digest.hex() if self._sealer is None else self._sealer.name(segment.digest)
        return self.folder / f"{stem}{'-state' if segment.is_state else ''}{self._suffix}"

    def write(self, segment: Segment, arrays: Sequence[NDArray[Any]]) -> int:
        """Write a segment's file, whole or not at all; returns its bytes. Raises OSError."""
        named = {str(i): np.ascontiguousarray(array) for i, array in enumerate(arrays)}
        facts = {
            "format": _FORMAT,
            "model": self._model,
            "parent": segment.parent.hex(),
            "start": str(segment.start),
            "tokens": json.dumps(segment.tokens),
            "state": str(int(segment.is_state)),
            "checksum": str(_checksum(named.values())),
        }
        path = self.path(segment)
        return self._replace(path, segment.domain, save(named, facts))

    def read_head(self, path: Path) -> Segment:
        """What a file says of itself. Raises ``ModelFormatError`` if it is damaged, or of another model or version."""
        return self._checked(path, lambda: self._read(path, None, whole=False))[0]

    def read_arrays(self, segment: Segment, like: Sequence[tuple[tuple[int, ...], Any]]) -> list[NDArray[Any]]:
        """The arrays of a segment's file: ``like`` has the shape and the dtype of each.

        Raises ``ModelFormatError`` if the file is missing or damaged, or holds other numbers.
        """
        path = self.path(segment)
        domain = None if self._sealer is None else segment.domain
        found, facts, content = self._checked(path, lambda: self._read(path, domain, whole=True))
        if found != segment:
            raise ModelFormatError(f"{path} is not what it was")
        arrays = _arrays(path, facts, content, like)
        if self._sealer is None and _checksum(arrays) != int(facts["__metadata__"]["checksum"]):
            raise ModelFormatError(f"{path} is damaged: its checksum differs")
        return arrays

    def _checked(self, path: Path, read: Callable[[], Any]) -> tuple[Segment, dict[str, Any], Any]:
        try:
            domain, content = read()
            facts = _head(content)
            found = self._segment(path, facts["__metadata__"], domain)
        except (OSError, KeyError, ValueError, TypeError, OverflowError, RecursionError) as error:
            raise ModelFormatError(f"{path} is damaged: {error}") from None
        if not found.tokens or found.start < 0 or path != self.path(found):
            raise ModelFormatError(f"{path} does not hold what its name says")
        return found, facts, content

    def _segment(self, path: Path, facts: dict[str, str], domain: bytes) -> Segment:
        if facts.get("format") != _FORMAT or facts.get("model") != self._model:
            raise ModelFormatError(f"{path} is of another version or model")
        tokens = tuple(map(int, json.loads(facts["tokens"])))
        parent, is_state, stat = bytes.fromhex(facts["parent"]), facts["state"] == "1", path.stat()
        digest, start = child_digest(parent, tokens), int(facts["start"])
        int(facts["checksum"])
        return Segment(digest, parent, start, tokens, is_state, stat.st_size, domain, stat.st_mtime)

    # -- notes -----------------------------------------------------------------------------------------------------

    def write_note(self, name: bytes, domain: bytes, content: bytes) -> None:
        """Keep a few bytes under a name. Raises OSError."""
        path = self._note(name)
        length = len(content).to_bytes(_LENGTH, "little")
        self._replace(path, domain, length + content if self._sealer else content)

    def read_note(self, name: bytes) -> bytes | None:
        """What ``write_note`` kept; None if there is nothing, or it was changed."""
        path = self._note(name)
        with suppress(OSError, ModelFormatError):
            if self._sealer is None:
                return path.read_bytes()
            return bytes(self._read(path, None, whole=True)[1][_LENGTH:])
        return None

    def notes(self) -> list[Path]:
        """The files of all notes."""
        return list(self.folder.glob(f"*{'.json' if self._sealer is None else '.note'}"))

    def _note(self, name: bytes) -> Path:
        return self.folder / (f"{name.hex()}.json" if self._sealer is None else f"{self._sealer.name(name)}.note")

    # -- bytes -----------------------------------------------------------------------------------------------------

    def _replace(self, path: Path, domain: bytes, content: bytes) -> int:
        fresh = path.with_suffix(f".{os.getpid()}.part")
        with open(private_file(fresh, "w"), "wb") as file:
            if self._sealer is None:
                file.write(content)
            else:
                head = _LENGTH + int.from_bytes(content[:_LENGTH], "little")
                self._sealer.write(file, path.name, domain, content[:head], memoryview(content)[head:])
            size = file.tell()
        os.replace(fresh, path)
        return size

    def _read(self, path: Path, domain: bytes | None, *, whole: bool) -> tuple[bytes, Any]:
        """The domain, if it is known, and the contents, which are the head alone unless ``whole``."""
        with path.open("rb") as file:
            if self._sealer is not None:
                return self._sealer.read(file, path.name, domain, whole=whole)
            return b"", file.read() if whole else _read_head(file)


def _read_head(file: BinaryIO) -> bytes:
    length = file.read(_LENGTH)
    return length + file.read(min(_MOST_HEAD, int.from_bytes(length, "little")))


def _head(content: bytes) -> dict[str, Any]:
    """The head of a file of safetensors. Raises ValueError."""
    head = json.loads(bytes(content[_LENGTH : _LENGTH + int.from_bytes(content[:_LENGTH], "little")]))
    if not isinstance(head, dict):
        raise ValueError("its head is no object")
    return head


def _arrays(path: Path, head: dict[str, Any], content: bytes, like: Sequence[Any]) -> list[NDArray[Any]]:
    """Views of the arrays in a file's contents."""
    base = _LENGTH + int.from_bytes(content[:_LENGTH], "little")
    found: list[NDArray[Any]] = []
    try:
        for i, (shape, dtype) in enumerate(like):
            each, kind = head[str(i)], np.dtype(dtype)
            begin, end = each["data_offsets"]
            count = math.prod(shape)
            held = each["dtype"], each["shape"], end - begin
            if held != (_NAMES[kind], [*shape], count * kind.itemsize):
                raise ModelFormatError(f"{path} holds rows of another size")
            found.append(np.frombuffer(content, kind, count, base + begin).reshape(shape))
    except (KeyError, ValueError, TypeError) as error:
        raise ModelFormatError(f"{path} is damaged: {error}") from None
    return found


def _checksum(arrays: Any) -> int:
    value = 0
    for array in arrays:
        value = zlib.crc32(memoryview(array.reshape(-1).view(np.uint8)), value)
    return value


def is_finite(numbers: NDArray[Any]) -> bool:
    """Whether all are finite: bfloat16 is held as 16 bits, and 8-bit codes always are."""
    if numbers.dtype == np.uint16:
        return not bool(((numbers & _EXPONENT) == _EXPONENT).any())
    return numbers.dtype == np.int8 or bool(np.isfinite(numbers).all())
