"""Recurrent layers for the native library."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from outrider.models.config import Recurrence, RecurrentLayers
from outrider.native.model_structs import RecurrentStruct
from outrider.native.weights import NativeWeight

__all__ = ["recurrent_matrices", "recurrent_struct"]

_MATRICES = {"in_proj_qkv": "qkv", "in_proj_z": "z", "in_proj_b": "b", "in_proj_a": "a", "out_proj": "out"}
"""Fields of ``outrider_recurrent`` by the names of a layer's matrices."""
_KINDS: tuple[Recurrence, ...] = ("delta", "short", "mamba2")
"""In the order of ``enum outrider_recurrence``."""

_Floats = NDArray[np.float32]


def recurrent_matrices(sizes: RecurrentLayers) -> tuple[str, ...]:
    """A recurrent layer's matrices."""
    return (*sizes.projections, "out_proj")


def recurrent_struct(
    sizes: RecurrentLayers,
    name: str,
    matrix: Callable[[str], NativeWeight],
    numbers: Callable[[str], _Floats],
    held: list[object],
) -> RecurrentStruct:
    """The struct of the layer whose weights' names begin with ``name``; its arrays are added to ``held``.

    Args:
        matrix: the packed matrix of a name.
        numbers: the floats of a name.
    """
    taps = np.ascontiguousarray(numbers(name + "conv1d.weight").reshape(sizes.channels, sizes.convolution).T)
    vectors = {"taps": taps} | {field: numbers(name + part) for field, part in _vectors(sizes).items()}
    held += vectors.values()
    return RecurrentStruct(
        **{_MATRICES[part]: matrix(name + part).struct for part in recurrent_matrices(sizes)},
        **{field: vector.ctypes.data for field, vector in vectors.items()},
        kind=_KINDS.index(sizes.kind),
        key_heads=sizes.key_heads,
        value_heads=sizes.value_heads,
        key_dim=sizes.key_dim,
        value_dim=sizes.value_dim,
        convolution=sizes.convolution,
        tiled=sizes.tiled,
    )


def _vectors(sizes: RecurrentLayers) -> dict[str, str]:
    """Fields of ``outrider_recurrent`` that are vectors, but the taps, and their names."""
    found = {"taps_bias": "conv1d.bias"} if sizes.convolution_bias else {}
    if sizes.kind != "short":
        found |= {"decay": "decay", "dt_bias": "dt_bias", "norm": "norm.weight"}
    return found | ({"skip": "skip"} if sizes.kind == "mamba2" else {})
