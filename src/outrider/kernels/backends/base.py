"""What a model asks of a backend: one decoder layer at a time, over packed tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from outrider.cache.protocol import KVCache
from outrider.kernels.attention.attention import AttentionPlan
from outrider.kernels.linear.linear import Linear
from outrider.kernels.norm import RMSNorm


@dataclass(frozen=True)
class Dimensions:
    """Of the heads of a layer."""

    heads: int
    kv_heads: int
    head_dim: int

    @property
    def group(self) -> int:
        """Query heads per key head."""
        return self.heads // self.kv_heads


@dataclass(frozen=True, eq=False)
class LayerWeights:
    """The norms and linear layers of one decoder layer, laid out for the device that runs them."""

    index: int
    attention_norm: RMSNorm
    qkv: Linear  # d -> (heads + 2 kv_heads) * head_dim
    q_norm: RMSNorm | None  # of each head
    k_norm: RMSNorm | None
    out: Linear
    mlp_norm: RMSNorm
    gate_up: Linear  # d -> 2 * intermediate
    down: Linear


LayerForward = Callable[[LayerWeights, Tensor, Tensor | None], tuple[Tensor, Tensor]]
"""Computes a decoder layer: from x and y (None: zero), whose sum [T, d] is its input, to those of the next layer.

The results may lie where those of the layer before last lay.
"""

Attention = Callable[[LayerWeights, Tensor], Tensor]
"""Of a layer's qkv [T, (heads + 2 * kv_heads) * head_dim], whose keys and values it stores: [T, heads * head_dim]."""


class Backend(Protocol):
    """Computes decoder layers. See ``outrider.kernels`` for the promises it keeps."""

    def padded_rows(self, count: int, alone: bool) -> int:
        """The number of rows to pad a forward pass of ``count`` tokens to; ``alone``: it is a single chain."""
        ...

    def add_rmsnorm(self, x: Tensor, y: Tensor | None, norm: RMSNorm) -> tuple[Tensor, Tensor]:
        """``x + y`` (x without y) and its norm: [T, d] each."""
        ...

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """SwiGLU's ``silu(gate) * up`` of [T, 2 * intermediate]: [T, intermediate]."""
        ...

    def layers(self, plan: AttentionPlan, cache: KVCache, rotation: Tensor) -> LayerForward:
        """A function to call with one layer after the other, for one forward pass.

        rotation: complex64 [T, 1, head_dim / 2].
        """
        ...


def unfused_layer(backend: Backend, attention: Attention) -> LayerForward:
    """A decoder layer as it is written down, operation by operation."""

    def forward(layer: LayerWeights, x: Tensor, y: Tensor | None) -> tuple[Tensor, Tensor]:
        x, normed = backend.add_rmsnorm(x, y, layer.attention_norm)
        x, normed = backend.add_rmsnorm(x, layer.out(attention(layer, layer.qkv(normed))), layer.mlp_norm)
        return x, layer.down(backend.silu_mul(layer.gate_up(normed)))

    return forward
