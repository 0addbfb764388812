"""Decoder layers in torch operations: any dtype, any device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from outrider.cache.protocol import KVCache
from outrider_torch.kernels.attention.attention import AttentionPlan, attend
from outrider_torch.kernels.attention.tree_tiles import TILE
from outrider_torch.kernels.backends.base import (
    Dimensions,
    ExpertWeights,
    LayerForward,
    LayerWeights,
    MLPWeights,
    unfused_layer,
)
from outrider_torch.kernels.backends.torch_mlp import dense, mixture
from outrider_torch.kernels.norm import Norm
from outrider_torch.kernels.rope import rotate
from outrider_torch.kernels.serial import elementwise


class TorchBackend:
    """A ``Backend`` of torch calls, one or a few for each operation of a layer."""

    def __init__(self, dimensions: Dimensions) -> None:
        self._of = dimensions

    def padded_rows(self, count: int, alone: bool) -> int:
        """Pad a short chain to a tile of attention, once for all layers."""
        return max(count, TILE) if alone else count

    def add_norm(self, x: Tensor, y: Tensor | None, norm: Norm | None) -> tuple[Tensor, Tensor]:
        x = x if y is None else x + y
        return x, x if norm is None else norm(x)

    def added(self, y: Tensor, norm: Norm | None) -> Tensor:
        y = y if norm is None else norm(y)
        return y if self._of.residual_scale == 1.0 else y * self._of.residual_scale

    def mlp(self, weights: MLPWeights | ExpertWeights, x: Tensor) -> Tensor:
        activate = _silu if self._of.activation == "silu" else _gelu_tanh
        if isinstance(weights, ExpertWeights):
            return mixture(weights, x, activate)
        return dense(weights, x, activate)

    def layers(
        self, plans: Sequence[AttentionPlan], cache: KVCache, rotations: Sequence[Tensor | None]
    ) -> LayerForward:
        def attention(layer: LayerWeights, qkv: Tensor) -> Tensor:
            plan = plans[layer.kind]
            q, k, v = self.split(layer, qkv, rotations[layer.kind])
            for span, row in plan.spans:
                rows = slice(row, row + span.count)
                cache.write(layer.index, span.slot, span.start, k[rows], v[rows])
            return attend(q, cache, layer.index, plan, self._of.attention_scale, self._of.attention_cap)

        return unfused_layer(self, attention)

    def split(self, layer: LayerWeights, qkv: Tensor, rotation: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of a layer's qkv, normed and rotated: [T, heads or kv_heads, head_dim] each."""
        d = self._of
        every = qkv.view(qkv.shape[0], -1, d.head_dim)  # [T, heads + 2 kv_heads, head_dim]
        qk, v = every[:, : d.heads + d.kv_heads], every[:, d.heads + d.kv_heads :]
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = qk[:, : d.heads], qk[:, d.heads :]
            if layer.whole_qk_norm:
                q, k = q.flatten(1), k.flatten(1)
            normed = (norm(t).view(len(qkv), -1, d.head_dim) for norm, t in ((layer.q_norm, q), (layer.k_norm, k)))
            qk = torch.cat(list(normed), dim=1)
        if rotation is not None:
            qk = rotate(qk, rotation)
        return qk[:, : d.heads], qk[:, d.heads :], v


def _silu(x: Tensor) -> Tensor:
    """SiLU of x: [T, intermediate]. In bfloat16 vector and scalar code round alike, for all 65,536 inputs."""
    return F.silu(x) if x.dtype != torch.float32 else elementwise(F.silu, x)


def _gelu_tanh(x: Tensor) -> Tensor:
    """GELU by tanh, in float32: [T, intermediate]."""
    return elementwise(lambda part: F.gelu(part, approximate="tanh"), x.float()).to(x.dtype)
