"""Decoder layers in torch operations, over packed tokens: any dtype, any device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.cache.protocol import KVCache
from outrider.models.clamped import ClampedSwiGLU
from outrider_torch.kernels.attention.attention import AttentionPlan, attend
from outrider_torch.kernels.attention.tree_tiles import TILE
from outrider_torch.kernels.latent import LatentWeights, latent_rows, latent_values
from outrider_torch.kernels.linear import TorchLinear
from outrider_torch.kernels.mlp import ExpertWeights, MLPWeights, activation, dense, mixture
from outrider_torch.kernels.norm import Norm, RMSNorm
from outrider_torch.kernels.recurrent.layers import RecurrentWeights, recurrent
from outrider_torch.kernels.recurrent.plan import StatePlan
from outrider_torch.kernels.rope import rotate
from outrider_torch.kernels.serial import elementwise


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
    clamped_swiglu: ClampedSwiGLU | None = None
    """In place of the activation."""

    gated_attention: bool = False
    """A head's output is times the sigmoid of its gate."""

    @property
    def group(self) -> int:
        """Query heads per key head."""
        return self.heads // self.kv_heads


@dataclass(frozen=True, eq=False)
class LayerWeights:
    """The norms and linear layers of one decoder layer, in the layout of their device."""

    index: int  # among the layers with attention, or among the recurrent ones
    attention_norm: Norm | None
    qkv: TorchLinear | None  # d -> (heads + 2 kv_heads) * head_dim, with gates heads more; or other first projections
    q_norm: RMSNorm | None  # per head
    k_norm: RMSNorm | None
    out: TorchLinear | None  # None, as qkv: the layer is an MLP or experts alone
    mlp_norm: Norm | None
    mlp: MLPWeights | ExpertWeights | None  # None: the layer is attention or recurrence alone
    kind: int = 0
    """Index of the layer's attention plan and rotation in the forward pass."""
    whole_qk_norm: bool = False  # over all heads together
    rotated_qk_norm: bool = False  # behind the rotation
    attention_output_norm: Norm | None = None
    mlp_output_norm: Norm | None = None
    sinks: Tensor | None = None  # [heads]: scores in the softmax without a value
    recurrent: RecurrentWeights | None = None  # in place of attention
    latent: LatentWeights | None = None


LayerForward = Callable[[LayerWeights, Tensor, Tensor | None], tuple[Tensor, Tensor]]
"""Computes a decoder layer: from x and y (None: zero), whose sum [T, d] is its input, to the next layer's x and y.

The results may reuse the memory of the results two layers before.
"""

Attention = Callable[[LayerWeights, Tensor], Tensor]
"""Stores keys and values of ``LayerWeights.qkv``'s output [T, n], and attends: [T, heads * head_dim]."""


class DecoderLayers:
    """Computes decoder layers. See ``outrider_torch.kernels`` for the promises it keeps."""

    def __init__(self, dimensions: Dimensions) -> None:
        self._of = dimensions

    def padded_rows(self, count: int, alone: bool) -> int:
        """The number of rows to pad a forward pass of ``count`` tokens to; ``alone``: it is a single chain.

        A short chain is padded to a tile of attention, once for all layers.
        """
        return max(count, TILE) if alone else count

    def _add_norm(self, x: Tensor, y: Tensor | None, norm: Norm | None) -> tuple[Tensor, Tensor]:
        """``x + y`` (y None: x) and its norm (norm None: the sum): [T, d] each."""
        x = x if y is None else x + y
        return x, x if norm is None else norm(x)

    def _added(self, y: Tensor, norm: Norm | None) -> Tensor:
        """The addition of a block's output y: [T, d] to the residual stream."""
        y = y if norm is None else norm(y)
        return y if self._of.residual_scale == 1.0 else y * self._of.residual_scale

    def _mlp(self, weights: MLPWeights | ExpertWeights, x: Tensor) -> Tensor:
        """The MLP or mixture of x: [T, d] -> [T, d]."""
        activate = activation(self._of.activation, self._of.clamped_swiglu)
        if isinstance(weights, ExpertWeights):
            return mixture(weights, x, activate)
        return dense(weights, x, activate)

    def layers(
        self,
        plans: Sequence[AttentionPlan],
        cache: KVCache,
        rotations: Sequence[Tensor | None],
        query_scales: Sequence[Tensor | None] = (),
        states: StatePlan | None = None,
    ) -> LayerForward:
        """A function that computes one layer after the other, for one forward pass.

        Args:
            plans: one for each kind of layer.
            rotations: complex64 [T, 1, head_dim / 2] of each kind of layer, or None: nothing is rotated.
            query_scales: float [T, 1, 1], factors of queries, for each kind of layer; None, or no kinds: 1.
            states: of recurrent layers; None: the model has none.
        """

        def attention(layer: LayerWeights, qkv: Tensor) -> Tensor:
            if layer.recurrent is not None:
                assert states is not None
                assert cache.states is not None
                return recurrent(layer.recurrent, states, cache.states, layer.index, qkv).to(qkv.dtype)
            plan = plans[layer.kind]
            if layer.latent is not None:
                q, k = latent_rows(layer.latent, qkv, rotations[layer.kind], self._of.heads)
                v = k
            else:
                q, k, v = self.split(layer, qkv, rotations[layer.kind])
            scales = query_scales[layer.kind] if query_scales else None
            if scales is not None:
                q = q * scales
            for span, row in plan.spans:
                rows = slice(row, row + span.count)
                cache.write(layer.index, span.slot, span.start, k[rows], v[rows])
            scale, cap = self._of.attention_scale, self._of.attention_cap
            out = attend(q, cache, layer.index, plan, scale, cap, layer.sinks)
            if layer.latent is not None:
                return latent_values(layer.latent, out)
            return out * self._gates(qkv) if self._of.gated_attention else out

        return self.with_attention(attention)

    def with_attention(self, attention: Attention) -> LayerForward:
        """A decoder layer around any attention."""

        def forward(layer: LayerWeights, x: Tensor, y: Tensor | None) -> tuple[Tensor, Tensor]:
            if layer.qkv is not None and layer.out is not None:
                x, normed = self._add_norm(x, y, layer.attention_norm)
                y = self._added(layer.out(attention(layer, layer.qkv(normed))), layer.attention_output_norm)
            if layer.mlp is not None:
                x, normed = self._add_norm(x, y, layer.mlp_norm)
                y = self._added(self._mlp(layer.mlp, normed), layer.mlp_output_norm)
            assert y is not None
            return x, y

        return forward

    def split(self, layer: LayerWeights, qkv: Tensor, rotation: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of a layer's qkv, normed and rotated: [T, heads or kv_heads, head_dim] each."""
        d = self._of
        every = qkv.view(qkv.shape[0], -1, d.head_dim)  # [T, heads + 2 kv_heads, head_dim]
        qk, v = every[:, : d.heads + d.kv_heads], every[:, d.heads + d.kv_heads :][:, : d.kv_heads]
        if not layer.rotated_qk_norm:
            qk = self._head_norms(layer, qk)
        if rotation is not None:
            qk = rotate(qk, rotation)
        if layer.rotated_qk_norm:
            qk = self._head_norms(layer, qk)
        return qk[:, : d.heads], qk[:, d.heads :], v

    def _gates(self, qkv: Tensor) -> Tensor:
        """Factors of the heads' outputs, [T, heads * head_dim]."""
        gates = qkv[:, -self._of.heads * self._of.head_dim :]
        return elementwise(torch.sigmoid, gates.float()).to(qkv.dtype)

    def _head_norms(self, layer: LayerWeights, qk: Tensor) -> Tensor:
        """Queries and keys [T, heads + kv_heads, head_dim], normed if the layer norms them."""
        d = self._of
        if layer.q_norm is None or layer.k_norm is None:
            return qk
        q, k = qk[:, : d.heads], qk[:, d.heads :]
        if layer.whole_qk_norm:
            q, k = q.flatten(1), k.flatten(1)
        normed = (norm(t).view(len(qk), -1, d.head_dim) for norm, t in ((layer.q_norm, q), (layer.k_norm, k)))
        return torch.cat(list(normed), dim=1)
