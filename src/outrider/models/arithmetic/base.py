"""What a model asks of the arithmetic between its matrix products."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from outrider.cache.protocol import KVCache
from outrider.models.attention import Plan
from outrider.models.norm import RMSNorm


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


@dataclass(frozen=True)
class Heads:
    """A layer's place, and the norms of its heads where it has some."""

    layer: int
    q_norm: RMSNorm | None
    k_norm: RMSNorm | None


Attention = Callable[[Heads, Tensor], Tensor]
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

    def attention(self, plan: Plan, cache: KVCache, rotation: Tensor) -> Attention:
        """Attention of one run, layer after layer. rotation: complex64 [T, 1, head_dim / 2]."""
        ...
