"""T5's positions: a learned bias on attention scores, for each head and distance of two tokens."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def bucket(distance: Tensor, *, two_sided: bool, buckets: int, longest: int) -> Tensor:
    """The bucket of each distance (key's position minus query's): int64 of the same shape.

    Raffel et al. 2020: half of the buckets are for one distance each, the others grow logarithmically up to
    ``longest``. With ``two_sided``, keys after the query have their own buckets; else they count as distance 0.
    """
    found = torch.zeros_like(distance)
    if two_sided:
        buckets //= 2
        found = (distance > 0).long() * buckets
        distance = distance.abs()
    else:
        distance = (-distance).clamp_min(0)
    exact = buckets // 2
    far = exact + (
        torch.log(distance.float().clamp_min(1) / exact) / math.log(longest / exact) * (buckets - exact)
    ).long().clamp_max(buckets - exact - 1)
    return found + torch.where(distance < exact, distance, far.clamp_max(buckets - 1))


class RelativeBias:
    """The bias that all layers of one stack share."""

    def __init__(self, weight: Tensor, *, two_sided: bool, longest: int) -> None:
        """``weight``: [buckets, heads]."""
        self._weight, self._two_sided, self._longest = weight, two_sided, longest

    def __call__(self, queries: Tensor, keys: int) -> Tensor:
        """The bias of queries at positions int64 [n] on keys 0 .. keys - 1: [heads, n, keys]."""
        distance = torch.arange(keys, device=queries.device) - queries[:, None]
        index = bucket(distance, two_sided=self._two_sided, buckets=len(self._weight), longest=self._longest)
        return self._weight[index].permute(2, 0, 1)
