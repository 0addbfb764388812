"""Decoder layers of torch operations: any dtype, any device."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from outrider.cache.protocol import KVCache
from outrider.kernels.attention.attention import AttentionPlan, attend
from outrider.kernels.attention.tree_tiles import TILE
from outrider.kernels.backends.base import Dimensions, LayerForward, LayerWeights, unfused_layer
from outrider.kernels.norm import RMSNorm
from outrider.kernels.rope import rotate
from outrider.kernels.serial import serial_rows


class TorchBackend:
    """Each operation of a layer is one or a few calls of torch."""

    def __init__(self, dimensions: Dimensions) -> None:
        self._of = dimensions

    def padded_rows(self, count: int, alone: bool) -> int:
        """A short chain fills a tile of attention, once here rather than in every layer."""
        return max(count, TILE) if alone else count

    def add_rmsnorm(self, x: Tensor, y: Tensor | None, norm: RMSNorm) -> tuple[Tensor, Tensor]:
        x = x if y is None else x + y
        return x, norm(x)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return _silu(gate) * up

    def layers(self, plan: AttentionPlan, cache: KVCache, rotation: Tensor) -> LayerForward:
        def attention(layer: LayerWeights, qkv: Tensor) -> Tensor:
            q, k, v = self.split(layer, qkv, rotation)
            for span, row in plan.spans:
                rows = slice(row, row + span.count)
                cache.write(layer.index, span.slot, span.start, k[rows], v[rows])
            return attend(q, cache, layer.index, plan)

        return unfused_layer(self, attention)

    def split(self, layer: LayerWeights, qkv: Tensor, rotation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
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
