"""Tensors that hold the rows of several projections side by side: Qwen3-Next's and Mamba-2's."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from outrider.models.config import RecurrentLayers

__all__ = ["rows_of"]


@lru_cache(maxsize=8)
def rows_of(part: str, recurrent: RecurrentLayers) -> NDArray[np.int64]:
    """The rows of ``part``, ``qkv`` or ``z`` of ``in_proj_qkvz``, or ``b`` or ``a`` of ``in_proj_ba``.

    Key head h has its query, its key, the values of its value heads and their z, one after another; likewise b and a of
    its value heads. Of ``qkv`` all queries come first, then all keys, then all values.

    With 2 key heads of 1 number and 2 value heads of 1:   q0 k0 v0 z0 q1 k1 v1 z1  ->  q0 q1 k0 k1 v0 v1,  z0 z1
    """
    c = recurrent
    if c.kind == "mamba2":
        return _rows_of_mamba(part, c)
    each = c.value_heads // c.key_heads  # value heads of a key head
    sizes: tuple[int, ...] = (each, each)
    wanted = {"qkv": (0, 1, 2), "z": (3,), "b": (0,), "a": (1,)}[part]
    if part in ("qkv", "z"):
        sizes = (c.key_dim, c.key_dim, each * c.value_dim, each * c.value_dim)
    heads = np.arange(c.key_heads, dtype=np.int64)[:, None] * sum(sizes)
    return np.concatenate([(heads + sum(sizes[:i]) + np.arange(sizes[i])).reshape(-1) for i in wanted])


def _rows_of_mamba(part: str, c: RecurrentLayers) -> NDArray[np.int64]:
    """The rows of ``qkv``, ``z`` or ``a`` of ``in_proj``, or of ``conv1d``.

    One after another: z, values, keys, queries, a. The convolution has those of values, keys and queries.
    """
    rows, keys = np.arange(2 * c.values + 2 * c.key_heads * c.key_dim + c.value_heads), c.key_heads * c.key_dim
    z, value, key, query, a = np.split(rows, np.cumsum([c.values, c.values, keys, keys]))
    mixed = np.concatenate([query, key, value])
    return {"qkv": mixed, "z": z, "a": a, "conv1d": mixed - c.values}[part]
