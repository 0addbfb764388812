"""Attention on latents for the native library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from outrider.models.latent import LatentAttention
from outrider.native.model_structs import LatentStruct
from outrider.native.weights import NativeWeight

__all__ = ["latent_matrices", "latent_struct"]

_FIELDS = {"kv_a": "kv_a_proj_with_mqa", "k_b": "k_b_proj", "v_b": "v_b_proj", "out": "o_proj"}


def latent_matrices(sizes: LatentAttention) -> list[str]:
    """The names of a layer's matrices, in the order in which a forward pass reads them."""
    return [*(("q_a_proj", "q_b_proj") if sizes.query_rank else ("q_proj",)), *_FIELDS.values()]


def latent_struct(
    sizes: LatentAttention, name: str, matrix: Callable[[str], NativeWeight], vector: Callable[[str], Any]
) -> LatentStruct:
    """The struct of the attention whose weights' names begin with ``name``.

    Args:
        matrix: the packed matrix of a name.
        vector: the floats of a name, which live as long as the struct.
    """
    struct = LatentStruct(
        **{field: matrix(name + part).struct for field, part in _FIELDS.items()},
        q_b=matrix(name + ("q_b_proj" if sizes.query_rank else "q_proj")).struct,
        query_rank=sizes.query_rank,
        rank=sizes.rank,
        plain=sizes.plain,
        rotated=sizes.rotated,
        value_dim=sizes.value_dim,
        eps=sizes.eps,
        norm=vector(name + "kv_a_layernorm.weight").ctypes.data,
    )
    if sizes.query_rank:
        struct.q_a = matrix(name + "q_a_proj").struct
        struct.query_norm = vector(name + "q_a_layernorm.weight").ctypes.data
    return struct
