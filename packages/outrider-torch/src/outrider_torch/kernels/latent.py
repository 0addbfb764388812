"""Attention on latents (multi-head latent attention, DeepSeek-V2) in torch operations.

Queries are brought to the latents' form, and attend to the cached rows as one key head. What they attended to is
brought to each head's values. This is the one order of operations, for one row and for many.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.models.latent import LatentAttention
from outrider_torch.kernels.linear import HeadLinear, TorchLinear
from outrider_torch.kernels.norm import RMSNorm
from outrider_torch.kernels.rope import rotate

__all__ = ["LatentWeights", "latent_rows", "latent_values"]


@dataclass(frozen=True, eq=False)
class LatentWeights:
    """A layer's weights between its first projections, which are fused, and its last."""

    of: LatentAttention
    norm: RMSNorm  # of latents
    k_b: HeadLinear  # plain -> rank
    v_b: HeadLinear  # rank -> value_dim
    query_norm: RMSNorm | None = None
    q_b: TorchLinear | None = None  # query_rank -> heads * query_dim; None: the first projections give it


def latent_rows(
    weights: LatentWeights, projected: Tensor, rotation: Tensor | None, heads: int
) -> tuple[Tensor, Tensor]:
    """Queries [T, heads, row] and rows of the cache [T, 1, row] of the first projections' outputs [T, n]."""
    of = weights.of
    queries, both = projected[:, : -of.row], projected[:, -of.row :]
    if weights.q_b is not None:
        assert weights.query_norm is not None
        queries = weights.q_b(weights.query_norm(queries.contiguous()))
    q = queries.reshape(len(projected), heads, of.query_dim)
    rotated, shared = q[..., of.plain :], both[:, None, of.rank :]
    if rotation is not None:
        turned = rotate(torch.cat([rotated, shared], dim=1), rotation)
        rotated, shared = turned[:, :heads], turned[:, heads:]
    latents = weights.norm(both[:, : of.rank].contiguous())
    queries = torch.cat([weights.k_b(q[..., : of.plain]), rotated], dim=-1)
    return queries, torch.cat([latents[:, None], shared], dim=-1)


def latent_values(weights: LatentWeights, attended: Tensor) -> Tensor:
    """The heads' values [T, heads * value_dim] of what they attended to: rows [T, heads * row]."""
    rows = attended.unflatten(1, (-1, weights.of.row))
    return weights.v_b(rows[..., : weights.of.rank]).flatten(1)
