"""Safetensors files: headers checked before anything is mapped, tensors read lazily, files written as a stream.

| 8 bytes: header length n, little-endian | n bytes: JSON {name: {dtype, shape, data_offsets}} | data |
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeGuard

import numpy as np
from numpy.typing import NDArray

from outrider.errors import ModelFormatError
from outrider.native.stored import StoredTensor
from outrider.utils.json_files import shown

_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
_WEIGHT_DTYPES = ("BF16", "F16", "F32")
_ALIGNMENT = 64  # of the data section: mapped weights then lie on cache lines
_MAX_HEADER = 100_000_000  # the limit of the safetensors library itself


@dataclass(frozen=True)
class TensorInfo:
    """One line of the header."""

    dtype: str
    shape: tuple[int, ...]
    start: int  # bytes from the start of the file
    stop: int


def read_header(path: Path) -> dict[str, TensorInfo]:
    """The tensors a file declares, checked against its size.

    Raises ``ModelFormatError`` for a header that is not JSON, repeats a name, or describes data that is not in the
    file, overlaps, or does not fit its dtype and shape. Reads at most the header, and no more than the file holds.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
        if not 2 <= length <= min(size - 8, _MAX_HEADER):
            raise _damaged(path, f"its header claims {length:,} bytes of a file of {size:,}")
        raw = _parse_json(path, file.read(length))
    if not isinstance(raw.get("__metadata__", {}), dict):
        raise _damaged(path, "its __metadata__ is not a JSON object")
    data = 8 + length
    tensors = {name: _parse_info(path, name, value, data) for name, value in raw.items() if name != "__metadata__"}
    _check_spans(path, tensors, data, size)
    return tensors


def _parse_json(path: Path, data: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = dict(pairs)
        if len(keys) != len(pairs):
            raise ValueError("a name appears twice")
        return keys

    try:
        raw = json.loads(data.decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"its header is not valid JSON ({shown(str(error))})") from None
    if not isinstance(raw, dict):
        raise _damaged(path, "its header is not a JSON object")
    return raw


def _parse_info(path: Path, name: str, value: object, data: int) -> TensorInfo:
    fields = value if isinstance(value, dict) else {}
    dtype, shape, offsets = fields.get("dtype"), fields.get("shape"), fields.get("data_offsets")
    if not (_are_sizes(shape) and _are_sizes(offsets) and len(offsets) == 2 and isinstance(dtype, str)):
        raise _damaged(path, f"tensor {shown(name)} has no valid dtype, shape and data_offsets")
    if dtype not in _BYTES:
        raise _unsupported(path, name, dtype)
    start, stop = offsets
    if math.prod(shape) * _BYTES[dtype] != stop - start:
        raise _damaged(path, f"tensor {shown(name)} is {dtype} {shown(shape)} but spans {stop - start} bytes")
    return TensorInfo(dtype, tuple(shape), data + start, data + stop)


def _are_sizes(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 2**63 for n in value)


def _check_spans(path: Path, tensors: Mapping[str, TensorInfo], data: int, size: int) -> None:
    at = data
    for name, info in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].stop)):
        if info.start != at:
            starts, ends = info.start - data, at - data
            raise _damaged(path, f"tensor {shown(name)} starts at byte {starts}, the one before it ends at {ends}")
        at = info.stop
    if at != size:
        raise _damaged(path, f"its header describes {at - data:,} bytes of data, the file holds {size - data:,}")


def _unsupported(path: Path, name: str, dtype: str, wanted: Collection[str] = _WEIGHT_DTYPES) -> ModelFormatError:
    known = ", ".join(wanted)
    verb = "is" if len(wanted) == 1 else "are"
    return ModelFormatError(f"{path}: tensor {shown(name)} has dtype {shown(dtype)}: only {known} {verb} supported")


def _damaged(path: Path, why: str) -> ModelFormatError:
    return ModelFormatError(f"{path} is damaged: {why}; download it again")


def check_dtypes(infos: Mapping[str, tuple[Path, TensorInfo]], codes: Collection[str]) -> None:
    """Raise ``ModelFormatError`` for a dtype that weights, or ``codes``, cannot have."""
    for name, (path, info) in infos.items():
        wanted = ("U8",) if name in codes else _WEIGHT_DTYPES
        if info.dtype not in wanted:
            raise _unsupported(path, name, info.dtype, wanted)


def stored_tensors(
    files: Mapping[str, Path], infos: Mapping[str, TensorInfo], codes: Collection[str] = ()
) -> dict[str, StoredTensor]:
    """The tensors as views of their mapped files.

    ``codes``: names of tensors that are bytes. Raises ``ModelFormatError`` for a dtype other than BF16, F16 and F32, or
    U8 for codes.
    """
    check_dtypes({name: (files[name], info) for name, info in infos.items()}, codes)
    maps = {path: np.memmap(path, mode="r", dtype=np.uint8) for path in set(files.values())}
    return {
        name: StoredTensor(info.dtype, info.shape, maps[files[name]][info.start : info.stop])
        for name, info in infos.items()
    }


_READ = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U8": "u1"}


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """All tensors of a file, copied: floats as float32 (lossless except for F64), other types as int64.

    Raises ``ModelFormatError`` for a damaged file, or one that cannot be read.
    """
    infos, arrays = read_header(path), dict[str, NDArray[Any]]()
    try:
        data = np.memmap(path, mode="r", dtype=np.uint8)
        for name, info in infos.items():
            raw = data[info.start : info.stop].tobytes()
            if info.dtype == "BF16":
                values = (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
            else:
                values = np.frombuffer(raw, _READ.get(info.dtype, "?"))
                values = values.astype(np.float32 if info.dtype.startswith("F") else np.int64)
            arrays[name] = values.reshape(info.shape)
    except (OSError, ValueError) as error:
        raise ModelFormatError(f"{path} cannot be read ({shown(str(error))}): download it again") from None
    return arrays


def write_bfloat16(
    file: BinaryIO,
    shapes: Mapping[str, tuple[int, ...]],
    tensors: Iterable[tuple[str, NDArray[np.uint16]]],
    on_bytes: Callable[[int], None],
) -> None:
    """Write ``tensors`` one at a time, in the order of ``shapes``, so that memory holds a single tensor.

    ``tensors`` hold bfloat16 as 16 bits (``verify.arrays.bfloat16``). ``on_bytes`` gets the bytes of each tensor.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, shape in shapes.items():
        stop = at + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, stop]}
        at = stop
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    file.write(struct.pack("<Q", len(text)) + text)
    for (name, tensor), (expected, shape) in zip(tensors, shapes.items(), strict=True):
        if name != expected or tuple(tensor.shape) != shape:
            raise ValueError(f"tensor {name} {list(tensor.shape)} in the place of {expected} {list(shape)}")
        data = np.ascontiguousarray(tensor)
        file.write(data.data)
        on_bytes(data.nbytes)
