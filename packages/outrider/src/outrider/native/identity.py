"""What packed weights depend on: the model's files, the layouts of the library, and the plan of each matrix."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from outrider.errors import ModelFormatError
from outrider.native.gguf_types import GGUF_TYPES_BY_NUMBER, gguf_number
from outrider.native.library import ABI
from outrider.native.plans import Plan, Target
from outrider.native.stored import StoredTensor
from outrider.utils.system import read_at

__all__ = ["PackedPlace", "facts_of"]

_FORMAT = 1  # of the file, raised when it changes
_SAMPLES, _SAMPLE = 64, 4096
_HEAD = 1 << 20  # bytes at both ends of a file that are compared
_LEAST = 16 << 20
"""Bytes of panels from which a file is worth its while."""


@dataclass(frozen=True)
class PackedPlace:
    """Where the packed weights of a model are kept."""

    path: Path
    model: str
    """The model's folder, for lists of files."""
    progress: bool = False
    """Whether long work is shown on a terminal."""
    least: int = _LEAST
    """Bytes below which packing costs less than a file."""


def facts_of(plans: Sequence[Plan], place: PackedPlace) -> dict[str, Any] | None:
    """What the panels of ``plans`` depend on, as JSON has it; None for tensors that are in no file."""
    paths = {name for plan in plans if (name := plan.stored.mapped_file) is not None}
    if any(plan.stored.mapped_file is None for plan in plans):
        return None
    files = {name: _identity(name) for name in sorted(paths)}
    digest = hashlib.blake2b(digest_size=32)
    for plan in plans:
        stored = plan.stored
        about = [stored.mapped_file, stored.places, stored.type, stored.shape, plan.target, plan.nbytes]
        digest.update(json.dumps(about).encode() + bytes(plan.struct) + _layout(stored.type, plan.target))
        if plan.order is not None:
            digest.update(plan.order.data)
    versions = [_FORMAT, ABI, sys.byteorder]
    return {"model": place.model, "files": files, "versions": versions, "plans": digest.hexdigest()}


def _identity(name: str) -> list[Any]:
    """Size, time and samples of a file: a copy of another file of the same size and time differs in some of them."""
    with open(name, "rb") as file:
        found, number = os.fstat(file.fileno()), file.fileno()
        digest = hashlib.blake2b(digest_size=16)
        for place, size in _samples(found.st_size):
            digest.update(read_at(number, size, place))
    return [found.st_size, found.st_mtime_ns, digest.hexdigest()]


def _samples(size: int) -> Iterator[tuple[int, int]]:
    yield 0, _HEAD
    for i in range(1, _SAMPLES):
        yield size * i // _SAMPLES, _SAMPLE
    yield max(0, size - _HEAD), _HEAD


@cache
def _layout(kind: str, target: Target | None) -> bytes:
    """A digest of how the library packs a type, so that no other version of it reads what this one has written."""
    gguf = GGUF_TYPES_BY_NUMBER[gguf_number(kind)]
    rows, inputs = 20, 512
    size = rows * inputs // gguf.block * gguf.block_bytes
    data = np.random.default_rng(1).integers(0, 256, size, np.uint8) & 0xBF  # no scale is infinite
    try:
        plan = Plan(StoredTensor(kind, (rows, inputs), data.astype(np.uint8)), target)
        panels = np.zeros(plan.nbytes, np.uint8)
        plan.pack(0, plan.panels, panels)
    except ModelFormatError as error:  # too large for the target
        return str(error).encode()
    return hashlib.blake2b(panels.data, digest_size=16).digest() + bytes(plan.struct)
