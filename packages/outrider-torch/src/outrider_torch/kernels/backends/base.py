"""The interface of a backend: one decoder layer at a time, over packed tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from outrider.cache.protocol import KVCache
from outrider_torch.kernels.attention.attention import AttentionPlan
from outrider_torch.kernels.linear.linear import Linear
from outrider_torch.kernels.norm import Norm, RMSNorm


@dataclass(frozen=True)
class Dimensions:
    """Dimensions of attention heads, and constants that all layers share."""

    heads: int
    kv_heads: int
    head_dim: int
    activation: str = "silu"
    residual_scale: float = 1.0
    """Factor of each block's output before the residual sum."""
    attention_scale: float | None = None
    """Factor of scores; None: 1 / sqrt(head_dim)."""
    attention_cap: float | None = None
    """Scores become cap * tanh(score / cap)."""

    @property
    def group(self) -> int:
        """Query heads per key head."""
        return self.heads // self.kv_heads


@dataclass(frozen=True, eq=False)
class MLPWeights:
    """Two linear layers with an activation between them."""

    gate_up: Linear  # d -> 2 * intermediate; only d -> intermediate if not gated
    down: Linear
    gated: bool = True


@dataclass(frozen=True, eq=False)
class ExpertWeights:
    """A mixture of MLPs, and the router that chooses ``used`` of them for each token."""

    router: Linear  # d -> experts
    experts: tuple[MLPWeights, ...]
    used: int
    normalised: bool


@dataclass(frozen=True, eq=False)
class LayerWeights:
    """The norms and linear layers of one decoder layer, in the layout of their device."""

    index: int
    attention_norm: Norm | None
    qkv: Linear  # d -> (heads + 2 kv_heads) * head_dim
    q_norm: RMSNorm | None  # per head
    k_norm: RMSNorm | None
    out: Linear
    mlp_norm: Norm | None
    mlp: MLPWeights | ExpertWeights
    kind: int = 0
    """Index of the layer's attention plan and rotation in the forward pass."""
    whole_qk_norm: bool = False  # over all heads together
    attention_output_norm: Norm | None = None
    mlp_output_norm: Norm | None = None


LayerForward = Callable[[LayerWeights, Tensor, Tensor | None], tuple[Tensor, Tensor]]
"""Computes a decoder layer: from x and y (None: zero), whose sum [T, d] is its input, to the next layer's x and y.

The results may reuse the memory of the results two layers before.
"""

Attention = Callable[[LayerWeights, Tensor], Tensor]
"""Stores keys and values of qkv [T, (heads + 2 * kv_heads) * head_dim], and attends: [T, heads * head_dim]."""


class Backend(Protocol):
    """Computes decoder layers. See ``outrider_torch.kernels`` for the promises it keeps."""

    def padded_rows(self, count: int, alone: bool) -> int:
        """The number of rows to pad a forward pass of ``count`` tokens to; ``alone``: it is a single chain."""
        ...

    def add_norm(self, x: Tensor, y: Tensor | None, norm: Norm | None) -> tuple[Tensor, Tensor]:
        """``x + y`` (y None: x) and its norm (norm None: the sum): [T, d] each."""
        ...

    def added(self, y: Tensor, norm: Norm | None) -> Tensor:
        """The addition of a block's output y: [T, d] to the residual stream."""
        ...

    def mlp(self, weights: MLPWeights | ExpertWeights, x: Tensor) -> Tensor:
        """The MLP or mixture of x: [T, d] -> [T, d]."""
        ...

    def layers(
        self, plans: Sequence[AttentionPlan], cache: KVCache, rotations: Sequence[Tensor | None]
    ) -> LayerForward:
        """A function that computes one layer after the other, for one forward pass.

        Args:
            plans: one for each kind of layer.
            rotations: complex64 [T, 1, head_dim / 2] of each kind of layer, or None: nothing is rotated.
        """
        ...


def unfused_layer(backend: Backend, attention: Attention) -> LayerForward:
    """A decoder layer, operation by operation."""

    def forward(layer: LayerWeights, x: Tensor, y: Tensor | None) -> tuple[Tensor, Tensor]:
        x, normed = backend.add_norm(x, y, layer.attention_norm)
        y = backend.added(layer.out(attention(layer, layer.qkv(normed))), layer.attention_output_norm)
        x, normed = backend.add_norm(x, y, layer.mlp_norm)
        return x, backend.added(backend.mlp(layer.mlp, normed), layer.mlp_output_norm)

    return forward
