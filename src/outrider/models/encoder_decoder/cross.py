"""Keys and values of an encoder's output: constant, one set for a request, seen whole by each of its rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from outrider.kernels.attention.attention import AttentionPlan, Piece
from outrider.kernels.attention.tree_tiles import TILE, padded
from outrider.kernels.batch import Span

__all__ = ["CrossKeys", "cross_piece"]


class CrossKeys:
    """Of every decoder layer; rows beyond the source are zeros up to a whole block, and masked."""

    def __init__(self, keys_values: Sequence[Tensor], heads: int) -> None:
        """``keys_values``: of each layer [n, 2 * heads * head_dim], keys in front."""
        self.length = len(keys_values[0])
        self.rows = padded(self.length)
        self._held = [self._laid_out(each, heads) for each in keys_values]
        self.mask = torch.zeros(1, 1, TILE, self.rows, dtype=keys_values[0].dtype, device=keys_values[0].device)
        self.mask[..., self.length :] = -torch.inf

    def _laid_out(self, keys_values: Tensor, heads: int) -> tuple[Tensor, Tensor]:
        grown = F.pad(keys_values, (0, 0, 0, self.rows - self.length))
        k, v = (part.reshape(self.rows, heads, -1) for part in grown.chunk(2, dim=-1))
        return k.contiguous(), v.contiguous()

    def read(self, layer: int, slot: int, rows: int) -> tuple[Tensor, Tensor]:
        """As ``KVCache.read``, whatever the slot."""
        k, v = self._held[layer]
        return k[:rows], v[:rows]


def cross_piece(keys: CrossKeys, span: Span, kv_heads: int) -> AttentionPlan:
    """How the rows of one span attend to ``keys``: in tiles, as ``kernels.attention`` explains."""
    tiles = max(-(-span.count // TILE), 2 if kv_heads == 1 else 1)
    mask = keys.mask.expand(tiles, -1, -1, -1)
    rows = range(span.count)
    seen = [keys.length] * tiles
    piece = Piece(span.slot, slice(0, span.count), keys.rows, mask, None, keys.rows, rows, seen)
    return AttentionPlan(((span, 0),), (piece,), None)
