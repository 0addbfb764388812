"""EAGLE's draft head: one decoder layer that continues the target's features (Li et al. 2024; EAGLE-3: Li et al. 2025).

kind "eagle" (EAGLE-1 and 2)                       kind "eagle3"

  x   = fc(cat(E[token t+1], h_t))                   g_t = fc(cat(low_t, mid_t, high_t))   (``fuse``), later a_{t-1}
  x   = x + attention(x)                             x   = g + attention(cat(norm(E[token t+1]), norm(g)))
  a_t = x + mlp(norm(x))                             a_t = x + mlp(norm(x))
  scores of token t+2 = LM head(a_t)                 scores of token t+2 = LM head(norm(a_t))

EAGLE-3.1 adds two norms, so that sizes neither differ by layer nor grow with depth: low, mid and high each have an
RMS norm before fc (``fc_norm``), and the next level reads norm(a_t), not a_t (``norm_output``). Some
published heads norm all three at once (``norm_before_fc``), or add to norm(g), not to g (``norm_before_residual``).

h_t is the target's hidden state after the final norm; low, mid and high are inner residual streams. a_t replaces
the next feature until the target's own is known. The row of feature t stands at position t.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from outrider.drafters.heads.config import HeadConfig
from outrider.models.frequencies import inverse_frequencies
from outrider_torch.heads.vocabulary import ScoringHead

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Attention of q: [..., heads, head_dim], k and v: [..., kv_heads, head_dim], rotated; to [..., heads, head_dim]."""


class HeadNorm(nn.Module):
    """RMS norm with a weight."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)


class Attention(nn.Module):
    """Projections and rotary positions; the caller's ``attend`` masks and attends."""

    def __init__(self, config: HeadConfig, width: int) -> None:
        super().__init__()
        self.config = config
        q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self.q_proj = nn.Linear(width, q, bias=False)
        self.k_proj = nn.Linear(width, kv, bias=False)
        self.v_proj = nn.Linear(width, kv, bias=False)
        self.o_proj = nn.Linear(q, config.hidden_size, bias=False)

    def forward(self, x: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        c = self.config
        q, k, v = (p(x).unflatten(-1, (-1, c.head_dim)) for p in (self.q_proj, self.k_proj, self.v_proj))
        cos, sin = rotary(positions, c)
        out = attend(apply_rotary(q, cos, sin), apply_rotary(k, cos, sin), v)
        return self.o_proj(out.flatten(-2))  # type: ignore[no-any-return]

    def keys(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values alone, for context rows: [..., kv_heads, head_dim] each."""
        k, v = (p(x).unflatten(-1, (-1, self.config.head_dim)) for p in (self.k_proj, self.v_proj))
        return apply_rotary(k, *rotary(positions, self.config)), v


class Mlp(nn.Module):
    """The gated feed-forward part of a Llama layer."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        d, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(d, inner, bias=False)
        self.up_proj = nn.Linear(d, inner, bias=False)
        self.down_proj = nn.Linear(inner, d, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))  # type: ignore[no-any-return]


class DecoderLayer(nn.Module):
    """One Llama layer; with fused features, the first layer's attention also reads a normed embedding."""

    def __init__(self, config: HeadConfig, *, first: bool = True) -> None:
        super().__init__()
        d, eps = config.hidden_size, config.rms_norm_eps
        wide = first and config.fuses_layers
        self.input_layernorm = HeadNorm(d, eps) if wide else None
        self.hidden_norm = HeadNorm(d, eps) if wide or not first else None  # EAGLE-1's only layer has no such norm
        self.norms_residual = bool(wide and config.norm_before_residual)
        self.self_attn = Attention(config, 2 * d if wide else d)
        self.post_attention_layernorm = HeadNorm(d, eps)
        self.mlp = Mlp(config)

    def forward(self, embedding: Tensor | None, x: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        stream = self.hidden_norm(x) if self.norms_residual and self.hidden_norm is not None else x
        x = stream + self.self_attn(self.reads(embedding, x), positions, attend)
        return x + self.mlp(self.post_attention_layernorm(x))  # type: ignore[no-any-return]

    def reads(self, embedding: Tensor | None, x: Tensor) -> Tensor:
        """The attention's input for a row."""
        if self.hidden_norm is None:
            return x
        normed: Tensor = self.hidden_norm(x)
        if embedding is None or self.input_layernorm is None:
            return normed
        return torch.cat([self.input_layernorm(embedding), normed], dim=-1)


class EagleLayer(ScoringHead):
    """The head of EAGLE-1, 2 and 3. Tensor names are those of published EAGLE-3 checkpoints."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__(config)
        d = config.hidden_size
        self.fc_norm: nn.ModuleList | None = None
        self.fc: nn.Linear | None
        if config.fc_norm:
            self.fc_norm = nn.ModuleList(HeadNorm(d, config.rms_norm_eps) for _ in config.feature_layers)
        if config.fuses_layers:
            self.fc = nn.Linear(len(config.feature_layers) * d, d, bias=False) if config.feature_layers else None
            self.norm = HeadNorm(d, config.rms_norm_eps)
            if config.norm_before_fc:
                self.input_norm = HeadNorm(len(config.feature_layers) * d, config.rms_norm_eps)
        else:
            self.fc = nn.Linear(2 * d, d)
        self.layers = nn.ModuleList(DecoderLayer(config, first=i == 0) for i in range(config.num_layers))

    @property
    def fusing(self) -> nn.Linear:
        """``fc``, for training: only published heads that read one layer alone have none."""
        assert self.fc is not None
        return self.fc

    def fuse(self, features: Tensor) -> Tensor:
        """The layer's input features: [..., d].

        ``features``: eagle3, dflash [..., layers * d], the residual streams after ``feature_layers``; eagle, and eagle3
        without such layers, [..., d], the final-norm hidden state, unchanged.
        """
        if not self.config.feature_layers:
            return features
        assert self.fc is not None
        if self.config.norm_before_fc:
            features = self.input_norm(features)
        if self.fc_norm is not None:
            parts = features.chunk(len(self.fc_norm), dim=-1)
            features = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], dim=-1)
        return self.fc(features)  # type: ignore[no-any-return]

    def forward(self, embeddings: Tensor, features: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Run rows through all layers.

        Args:
            embeddings: float [..., d], the target's input embedding of each row's token, t + 1.
            features: float [..., d], ``fuse`` of the target's feature at t, or the result for the row before.
            positions: int64 [...], each row's t.
            attend: attention with its mask; also keeps keys and values. Called once per layer, lowest first.

        Returns:
            a_t: float [..., d], the next row's feature; normed with ``norm_output``.
        """
        beside, x = self.inputs(embeddings, features)
        for layer in self.layers:
            x = layer(beside, x, positions, attend)
        return self.norm(x) if self.config.norm_output else x

    @property
    def layer(self) -> DecoderLayer:
        """The first decoder layer, for EAGLE the only one."""
        layer = self.layers[0]
        assert isinstance(layer, DecoderLayer)
        return layer

    def keys(self, embeddings: Tensor, features: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values alone of rows as in ``forward``: [..., kv_heads, head_dim] each."""
        return self.layer.self_attn.keys(self.layer.reads(*self.inputs(embeddings, features)), positions)

    def inputs(self, embeddings: Tensor, features: Tensor) -> tuple[Tensor | None, Tensor]:
        """The first layer's inputs for rows as in ``forward``."""
        if self.config.fuses_layers:
            return embeddings, features
        assert self.fc is not None
        return None, self.fc(torch.cat([embeddings, features], dim=-1))

    def scorable(self, out: Tensor) -> Tensor:
        """The LM head's input, [..., d], for an output a_t: heads of fused features norm it, unless already normed."""
        return self.norm(out) if self.config.fuses_layers and not self.config.norm_output else out


@functools.lru_cache(maxsize=16)
def _frequencies(head_dim: int, theta: float, scaling: tuple[tuple[str, Any], ...]) -> Tensor:
    """Rotary frequencies, float32 [head_dim / 2]; cached, as every level of a draft needs them."""
    return torch.from_numpy(inverse_frequencies(head_dim, theta, dict(scaling))).float()


def rotary(positions: Tensor, config: HeadConfig) -> tuple[Tensor, Tensor]:
    """float32 cosines and sines [..., 1, head_dim], pairs split by halves (Su et al. 2021)."""
    inverse = _frequencies(config.head_dim, config.rope_theta, tuple(config.rope_scaling.items()))
    angles = positions[..., None].float() * inverse.to(positions.device)
    angles = torch.cat([angles, angles], dim=-1)[..., None, :]
    return angles.cos(), angles.sin()


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate x: [..., heads, head_dim] by its position."""
    first, second = x.chunk(2, dim=-1)
    return (x * cos + torch.cat([-second, first], dim=-1) * sin).to(x.dtype)
