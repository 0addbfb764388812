"""Reads the header of a GGUF file, with a bound on every read.

    | "GGUF" | version u32 | tensor count u64 | key count u64 | keys and values | tensor infos | padding | data |

Every count, length and offset is compared with the bytes left in the file before it is used, so that a damaged file
costs no more time and memory than its own size.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from outrider.errors import ModelFormatError
from outrider.native.gguf_types import GGUF_TYPES_BY_NUMBER, GGUFType
from outrider.utils.json_files import shown

_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?", 10: "<u8", 11: "<i8", 12: "<f8"}


@dataclass(frozen=True)
class GGUFTensor:
    """Type, shape and bytes of one tensor. ``shape`` is in row-major order, the reverse of the file's."""

    type: GGUFType
    shape: tuple[int, ...]
    start: int  # bytes from the start of the file
    stop: int
    file: Path


@dataclass(frozen=True)
class GGUFHeader:
    """A file's header: metadata by key (arrays as lists or NumPy arrays) and tensors by name."""

    metadata: dict[str, Any]
    tensors: dict[str, GGUFTensor]

    def scalar(self, key: str, default: Any = None) -> Any:
        """A metadata value, or the value of all items of an array. Raises ``ModelFormatError`` if the items differ."""
        value = self.metadata.get(key, default)
        if isinstance(value, list | np.ndarray):
            if len(value) and all(each == value[0] for each in value):
                return value[0].item() if isinstance(value, np.ndarray) else value[0]
            raise ModelFormatError(f"{key} is an array, one value is supported: use a model whose layers are alike")
        return value


def read_gguf_header(path: Path) -> GGUFHeader:
    """Scan a file's header. Raises ``ModelFormatError`` naming the fault."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return HeaderScanner(path, data).scan()
    except ValueError as error:  # an empty file cannot be mapped
        raise ModelFormatError(f"{path} is damaged: {error}; download it again") from None


def _of_another_kind(version: int) -> str:
    """What is wrong with a file of this version, as a little-endian machine reads it."""
    swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
    if swapped in _VERSIONS:
        return "is big-endian: convert it with the gguf package's gguf-convert-endian FILE little"
    if version == 1:
        return "has GGUF version 1, of August 2023: download a newer file of the model"
    return f"has GGUF version {version}: versions 2 and 3 are read"


class HeaderScanner:
    """Reads a header from its beginning; ``at`` is the next byte."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.at = path, data, 0

    def damaged(self, why: str) -> ModelFormatError:
        return ModelFormatError(f"{self.path} is damaged: {why}; download it again")

    def counts(self) -> tuple[int, int]:
        """The numbers of tensors and of keys."""
        if self.take(4, "magic") != b"GGUF":
            raise ModelFormatError(f"{self.path} is not a GGUF file: it does not start with 'GGUF'")
        version = self.number("<I", "version")
        if version not in _VERSIONS:
            raise ModelFormatError(f"{self.path} {_of_another_kind(version)}")
        return self.count("tensors", least_bytes=24), self.count("keys", least_bytes=13)

    def scan(self) -> GGUFHeader:
        tensor_count, key_count = self.counts()
        metadata: dict[str, Any] = {}
        for _ in range(key_count):
            key = self.string("a key")
            if key in metadata:
                raise self.damaged(f"key {shown(key)} appears twice")
            metadata[key] = self.value(self.number("<I", "a type"), shown(key))
        raw = [self.tensor_info() for _ in range(tensor_count)]
        alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
            raise self.damaged(f"general.alignment={shown(alignment)} is not a power of two")
        start = -(-self.at // alignment) * alignment
        return GGUFHeader(metadata, self.place(raw, start, alignment))

    def take(self, count: int, what: str) -> bytes:
        if count > len(self.data) - self.at:
            raise self.damaged(
                f"{what} at byte {self.at} would take {count:,} bytes, {len(self.data) - self.at:,} are left"
            )
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, form: str, what: str) -> int:
        value: int = struct.unpack(form, self.take(struct.calcsize(form), what))[0]
        return value

    def count(self, what: str, least_bytes: int) -> int:
        """The number of items (``what``) that follow, each of at least ``least_bytes`` bytes."""
        count = self.number("<Q", what)
        if count > (len(self.data) - self.at) // least_bytes:
            raise self.damaged(f"it claims {count:,} {what} in a file of {len(self.data):,} bytes")
        return count

    def string(self, what: str) -> str:
        return self.take(self.number("<Q", what), what).decode(errors="replace")

    def strings(self, count: int, what: str) -> list[str]:
        """``count`` strings in one fast loop: a vocabulary has more than a hundred thousand."""
        data, at, end, length_at = self.data, self.at, len(self.data), struct.Struct("<Q").unpack_from
        found: list[str] = []
        for _ in range(count):
            stop = at + 8 + length_at(data, at)[0] if at + 8 <= end else end + 1
            if stop > end:
                break
            found.append(data[at + 8 : stop].decode(errors="replace"))
            at = stop
        self.at = at
        return found + [self.string(what) for _ in range(count - len(found))]  # ``string`` raises the error

    def value(self, kind: int, key: str) -> Any:
        if kind == _STRING:
            return self.string(key)
        if kind == _ARRAY:
            return self.array(key)
        if kind not in _SCALARS:
            raise self.damaged(f"{key} has unknown type {kind}")
        dtype = np.dtype(_SCALARS[kind])
        return np.frombuffer(self.take(dtype.itemsize, key), dtype)[0].item()

    def array(self, key: str) -> Any:
        kind = self.number("<I", key)
        if kind == _STRING:
            return self.strings(self.count(f"strings of {key}", least_bytes=8), key)
        if kind not in _SCALARS:
            raise self.damaged(f"{key} is an array of unknown type {kind}")
        dtype = np.dtype(_SCALARS[kind])
        count = self.count(f"numbers of {key}", least_bytes=dtype.itemsize)
        return np.frombuffer(self.take(count * dtype.itemsize, key), dtype)

    def tensor_info(self) -> tuple[str, GGUFType, tuple[int, ...], int]:
        name = self.string("a tensor's name")
        quoted = shown(name)
        dims = self.number("<I", quoted)
        if not 1 <= dims <= 4:
            raise self.damaged(f"tensor {quoted} has {dims} dimensions, not 1 to 4")
        shape = tuple(self.number("<Q", quoted) for _ in range(dims))
        kind, offset = self.number("<I", quoted), self.number("<Q", quoted)
        if kind not in GGUF_TYPES_BY_NUMBER:
            raise ModelFormatError(f"{self.path}: tensor {quoted} has unknown type {kind}: update outrider")
        return name, GGUF_TYPES_BY_NUMBER[kind], shape[::-1], offset

    def place(
        self, raw: list[tuple[str, GGUFType, tuple[int, ...], int]], start: int, alignment: int
    ) -> dict[str, GGUFTensor]:
        tensors: dict[str, GGUFTensor] = {}
        for name, kind, shape, offset in raw:
            block, block_bytes = kind.block, kind.block_bytes
            if name in tensors:
                raise self.damaged(f"tensor {shown(name)} appears twice")
            if offset % alignment or shape[-1] % block or 0 in shape:
                raise self.damaged(
                    f"tensor {shown(name)} {kind.name} {list(shape)} at {offset} is not whole or not aligned"
                )
            stop = start + offset + math.prod(shape) // block * block_bytes
            if stop > len(self.data):
                raise self.damaged(f"tensor {shown(name)} ends at byte {stop:,} of a file of {len(self.data):,}")
            tensors[name] = GGUFTensor(kind, shape, start + offset, stop, self.path)
        at, before = start, ""
        for name, tensor in sorted(tensors.items(), key=lambda item: item[1].start):
            if tensor.start < at:
                raise self.damaged(f"tensors {shown(before)} and {shown(name)} overlap")
            at, before = tensor.stop, name
        return tensors
