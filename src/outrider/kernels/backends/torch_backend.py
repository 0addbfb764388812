"""The arithmetic of torch operations: any dtype, any device."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from outrider.cache.protocol import KVCache
from outrider.kernels.attention.attention import Plan, attend
from outrider.kernels.attention.tile_sizes import TILE
from outrider.kernels.backends.base import Dimensions, Layer, Through, in_parts
from outrider.kernels.norm import RMSNorm
from outrider.kernels.rope import rotate
from outrider.kernels.serial import serial_rows


class Composed:
    def __init__(self, dimensions: Dimensions) -> None:
        self._of = dimensions

    def rows(self, count: int, alone: bool) -> int:
        """A short chain fills a tile of attention, once here rather than in every layer."""
        return max(count, TILE) if alone else count

    def add_norm(self, x: Tensor, y: Tensor | None, norm: RMSNorm) -> tuple[Tensor, Tensor]:
        x = x if y is None else x + y
        return x, norm(x)

    def gated(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return _silu(gate) * up

    def through(self, plan: Plan, cache: KVCache, rotation: Tensor) -> Through:
        def attention(layer: Layer, qkv: Tensor) -> Tensor:
            q, k, v = self.split(layer, qkv, rotation)
            for span, row in plan.spans:
                rows = slice(row, row + span.count)
                cache.write(layer.index, span.slot, span.start, k[rows], v[rows])
            return attend(q, cache, layer.index, plan)

        return in_parts(self, attention)

    def split(self, layer: Layer, qkv: Tensor, rotation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of a layer's qkv, normed and rotated: [T, heads or kv_heads, head_dim] each."""
        d = self._of
        every = qkv.view(qkv.shape[0], -1, d.head_dim)  # [T, heads + 2 kv_heads, head_dim]
        qk, v = every[:, : d.heads + d.kv_heads], every[:, d.heads + d.kv_heads :]
        if layer.q_norm is not None and layer.k_norm is not None:
            qk = torch.cat([layer.q_norm(qk[:, : d.heads]), layer.k_norm(qk[:, d.heads :])], dim=1)
        qk = rotate(qk, rotation)
        return qk[:, : d.heads], qk[:, d.heads :], v


def _silu(x: Tensor) -> Tensor:
    """SiLU of x: [T, intermediate]. In bfloat16 vector and scalar code round alike, for all 65,536 inputs."""
    rows = serial_rows(x.shape[1])
    if x.shape[0] <= rows or x.dtype != torch.float32 or x.is_cuda:
        return F.silu(x)
    return torch.cat([F.silu(part) for part in torch.split(x, rows)])
