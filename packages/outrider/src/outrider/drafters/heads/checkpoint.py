"""Reads a head: a folder with ``config.json`` and ``model.safetensors``, or a GGUF file. Reading executes no code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from outrider.drafters.heads.config import HeadConfig
from outrider.drafters.heads.fingerprint import TargetFingerprint
from outrider.drafters.heads.published import is_published, read_config, rename
from outrider.drafters.heads.published.gguf import read_gguf_config, read_gguf_tensors
from outrider.drafters.heads.weights import DRAFT_IDS, HeadWeights, Shapes, check_draft_ids, head_shapes
from outrider.errors import ModelFormatError
from outrider.utils.json_files import read_json_object, shown
from outrider.verify.arrays import Floats
from outrider.weights.files.safetensors import read_arrays, read_header

T = TypeVar("T")

WEIGHTS, CONFIG = "model.safetensors", "config.json"
Target = tuple[TargetFingerprint, Floats]
"""A loaded target's fingerprint, and rows ``fingerprint_rows`` of its embedding, float [n, d]."""


def read_head_config(folder: Path, target: TargetFingerprint | None = None) -> HeadConfig:
    """The configuration of the head in ``folder``. Errors and ``target`` as for ``read_head``."""
    return _read_config(folder, target)[0]


def read_head(
    folder: Path, target: Target | None = None, shapes: Callable[[HeadConfig], Shapes] = head_shapes
) -> HeadWeights:
    """The head in ``folder``, its floats widened to float32 without loss.

    Raises ``ModelFormatError`` naming the file and the tensor at fault. ``HeadConfig.check_target`` checks separately
    that the head fits a loaded target.

    Args:
        target: the target of a published head, whose files do not identify it; not used for other heads.
        shapes: names and shapes of the tensors that a configuration requires.
    """
    is_gguf = is_gguf_head(folder)
    path = folder if is_gguf else folder / WEIGHTS
    config, published = _read_config(folder, None if target is None else target[0])
    if not path.is_file():
        raise ModelFormatError(f"{folder} has no {WEIGHTS}: train the head again")
    expected = shapes(config)
    if published and target is not None:
        read = read_gguf_tensors if is_gguf else _read
        tensors = _named(path, lambda: rename(read(path), published, config, target[1]))
        found = {name: (value.shape, value.dtype == np.int64) for name, value in tensors.items()}
        _check_tensors(path, found, expected, config)
    else:  # shapes first: a configuration that does not match the file must not cost memory
        declared = {name: (info.shape, info.dtype == "I64") for name, info in read_header(path).items()}
        _check_tensors(path, declared, expected, config)
        tensors = _read(path)
    if DRAFT_IDS in tensors:
        _named(path, lambda: check_draft_ids(tensors[DRAFT_IDS], config))
    return HeadWeights(config, tensors)


def _read_config(folder: Path, target: TargetFingerprint | None) -> tuple[HeadConfig, dict[str, Any]]:
    """The configuration, and that of the file if it is in a published format; empty: it is in ours."""
    where = folder if is_gguf_head(folder) else folder / CONFIG
    try:
        raw = read_gguf_config(folder) if where == folder else read_json_object(where)
        if not is_published(raw):
            return HeadConfig.from_json(raw), {}
        if target is None:
            raise ModelFormatError("this is a published head, which can draft as it is, but not be trained further")
        return read_config(raw, target), raw
    except ModelFormatError as error:
        raise ModelFormatError(f"{where}: {error}") from None


def is_gguf_head(path: Path) -> bool:
    """Whether a head is a GGUF file rather than a folder."""
    return path.suffix == ".gguf" and path.is_file()


def _check_tensors(
    path: Path, found: Mapping[str, tuple[tuple[int, ...], bool]], expected: Shapes, config: HeadConfig
) -> None:
    """Raise ``ModelFormatError`` for a missing, surplus or different tensor. ``found``: shape, and whether int64."""
    for name, shape in expected.items():
        if name not in found:
            raise ModelFormatError(f"{path}: tensor {name} is missing (expected shape {list(shape)})")
        own, integers = found[name]
        if own != shape:
            raise ModelFormatError(
                f"{path}: tensor {name} has shape {list(own)}, but the configuration says {list(shape)}"
            )
        if integers != (name == DRAFT_IDS):
            raise ModelFormatError(f"{path}: tensor {name} has another dtype than the configuration says")
    for name in found:
        if name not in expected:
            raise ModelFormatError(f"{path}: tensor {shown(name)} belongs to no {config.kind} head")


def _named(path: Path, act: Callable[[], T]) -> T:
    """The result of ``act``; its ``ModelFormatError`` gets the file's name."""
    try:
        return act()
    except ModelFormatError as error:
        raise ModelFormatError(f"{path}: {error}") from None


def _read(path: Path) -> dict[str, NDArray[Any]]:
    """Every tensor of a file, copied: the file may change after the check."""
    tensors = read_arrays(path)
    for name, value in tensors.items():
        if value.dtype == np.float32 and not bool(np.isfinite(value).all()):
            raise ModelFormatError(f"{path}: tensor {name} holds values that are not numbers: train the head again")
    return tensors
