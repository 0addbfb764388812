"""Recurrent layers (Gated DeltaNet) for the native library."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from outrider.models.config import RecurrentLayers
from outrider.native.model_structs import RecurrentStruct
from outrider.native.weights import NativeWeight

__all__ = ["RECURRENT_MATRICES", "recurrent_struct"]

RECURRENT_MATRICES = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj")
"""A recurrent layer's matrices."""

_Floats = NDArray[np.float32]


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
    decay, dt_bias, norm = (numbers(name + part) for part in ("decay", "dt_bias", "norm.weight"))
    held += [taps, decay, dt_bias, norm]
    return RecurrentStruct(
        qkv=matrix(name + "in_proj_qkv").struct,
        z=matrix(name + "in_proj_z").struct,
        a=matrix(name + "in_proj_a").struct,
        b=matrix(name + "in_proj_b").struct,
        out=matrix(name + "out_proj").struct,
        key_heads=sizes.key_heads,
        value_heads=sizes.value_heads,
        key_dim=sizes.key_dim,
        value_dim=sizes.value_dim,
        convolution=sizes.convolution,
        tiled=sizes.tiled,
        taps=taps.ctypes.data,
        decay=decay.ctypes.data,
        dt_bias=dt_bias.ctypes.data,
        norm=norm.ctypes.data,
    )
