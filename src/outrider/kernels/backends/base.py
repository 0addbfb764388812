"""What a model asks of the arithmetic of its layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from outrider.cache.protocol import KVCache
from outrider.kernels.attention.attention import Plan
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
class Layer:
    index: int
    attention_norm: RMSNorm
    qkv: Linear  # d -> (heads + 2 kv_heads) * head_dim
    q_norm: RMSNorm | None  # of each head
    k_norm: RMSNorm | None
    out: Linear
    mlp_norm: RMSNorm
    gate_up: Linear  # d -> 2 * intermediate
    down: Linear


Through = Callable[[Layer, Tensor, Tensor | None], tuple[Tensor, Tensor]]
"""A layer of one run: from x and y (None: zero), whose sum [T, d] is its input, to those of the next layer.

The results may lie where those of the layer before last lay.
"""

Attention = Callable[[Layer, Tensor], Tensor]
"""Of a layer's qkv [T, (heads + 2 * kv_heads) * head_dim], whose keys and values it stores: [T, heads * head_dim]."""


class Arithmetic(Protocol):
    def rows(self, count: int, alone: bool) -> int:
        """How many rows to lay a run of ``count`` out in; ``alone``: a single chain."""
        ...

    def add_norm(self, x: Tensor, y: Tensor | None, norm: RMSNorm) -> tuple[Tensor, Tensor]:
        """``x + y`` (x without y) and its norm: [T, d] each."""
        ...

    def gated(self, gate_up: Tensor) -> Tensor:
        """SwiGLU's ``silu(gate) * up`` of [T, 2 * intermediate]: [T, intermediate]."""
        ...

    def through(self, plan: Plan, cache: KVCache, rotation: Tensor) -> Through:
        """One run, layer after layer. rotation: complex64 [T, 1, head_dim / 2]."""
        ...


def in_parts(of: Arithmetic, attention: Attention) -> Through:
    """A layer as it is written down, operation by operation."""

    def through(layer: Layer, x: Tensor, y: Tensor | None) -> tuple[Tensor, Tensor]:
        x, normed = of.add_norm(x, y, layer.attention_norm)
        x, normed = of.add_norm(x, layer.out(attention(layer, layer.qkv(normed))), layer.mlp_norm)
        return x, layer.down(of.gated(layer.gate_up(normed)))

    return through
