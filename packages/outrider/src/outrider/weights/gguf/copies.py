"""Copies of a model's embedding and LM head that a draft head in a GGUF file brings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.errors import ModelFormatError
from outrider.native.library import library
from outrider.native.stored import StoredTensor
from outrider.native.weights import pack
from outrider.weights.gguf.header import GGUFHeader

__all__ = ["OWN", "is_copy"]

_MODEL = {
    "mtp.embed_tokens.weight": ("model.embed_tokens.weight",),
    "mtp.lm_head.weight": ("lm_head.weight", "model.embed_tokens.weight"),
}
OWN = _MODEL.keys()
"""Names of a head's own embedding and LM head."""
_ROWS = 16
_APART = 0.5
"""The distance of two tensors, as a part of the first, up to which they are one that was quantised in two ways."""


def is_copy(name: str, names: Mapping[str, str], header: GGUFHeader) -> bool:
    """Whether a tensor of a draft head is the model's own once more, by some of its rows.

    A wrong answer costs drafts, and no output. ``names``: the file's names by canonical ones.
    """
    own = next((names[place] for place in _MODEL.get(name, ()) if place in names), None)
    if own is None or library() is None:
        return False
    tensor, other = (header.tensors[raw] for raw in (names[name], own))
    if tensor.shape != other.shape or len(tensor.shape) != 2:
        return False
    try:
        found, wanted = _some_rows(tensor), _some_rows(other)
    except ModelFormatError:  # of a type that is not read
        return False
    return float(np.linalg.norm(found - wanted)) <= _APART * float(np.linalg.norm(wanted))


def _some_rows(tensor: Any) -> NDArray[np.float32]:
    ids = np.linspace(0, tensor.shape[0] - 1, _ROWS).astype(np.int64)
    data = np.memmap(tensor.file, mode="r", dtype=np.uint8)[tensor.start : tensor.stop]
    return pack(StoredTensor(tensor.type.name, tensor.shape, data), order=ids).rows(np.arange(len(ids)))
