"""The order of rows in the matrices of attention on latents."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from outrider.models.latent import LatentAttention

__all__ = ["BOTH", "rows_of_heads"]

BOTH = "self_attn.kv_b_proj.weight"
"""End of the name of a file's matrix that has each head's rows for its keys, and behind them those for its values."""


@lru_cache(maxsize=16)
def rows_of_heads(
    part: str, heads: int, sizes: LatentAttention, interleaved: bool, together: bool
) -> NDArray[np.int64] | None:
    """The rows of a file's matrix that are ``part``: a projection's name. None: all, in their order.

    ::

        q_proj, interleaved    a b (0,re) (0,im) (1,re) (1,im)  ->  a b (0,re) (1,re) (0,im) (1,im), head by head
        k_b_proj, together     a b v w  ->  a b                    v_b_proj: v w, head by head

    Args:
        interleaved: rotary pairs are adjacent rows in the file.
        together: the file has the rows of ``k_b_proj`` and ``v_b_proj`` in one matrix.
    """
    if part in ("k_b_proj", "v_b_proj"):
        both = sizes.plain + sizes.value_dim
        own = np.arange(sizes.plain) if part == "k_b_proj" else np.arange(sizes.plain, both)
        return _repeated(own, heads, both) if together else None
    if not interleaved or part not in ("q_proj", "q_b_proj", "kv_a_proj_with_mqa"):
        return None
    before = sizes.rank if part == "kv_a_proj_with_mqa" else sizes.plain
    turned = np.arange(before, before + sizes.rotated)
    own = np.concatenate([np.arange(before), turned[0::2], turned[1::2]])
    return _repeated(own, 1 if part == "kv_a_proj_with_mqa" else heads, len(own))


def _repeated(own: NDArray[np.int64], heads: int, size: int) -> NDArray[np.int64]:
    rows: NDArray[np.int64] = (np.arange(heads, dtype=np.int64)[:, None] * size + own).reshape(-1)
    return rows
