"""A draft head of the target's own kind (multi-token prediction, "nextn") as a torch module.

    x   = fc(cat(norm(E[token t+1]), norm(h_t)))
    x   = x + attention(norm(x))             as in the target's layers: norms on heads, a gate, partial rotation
    a_t = norm(x + mlp(norm(x)))             an MLP, or experts as in the target's last layer
                                             scores of token t+2 = the target's LM head(a_t)

h_t is the target's hidden state after its final norm; at deeper levels a_{t-1} takes its place.
Tensors have the names, the order of rows and the offset of norms of published files.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from outrider.errors import ConfigError
from outrider.models.config import ModelConfig
from outrider.models.frequencies import inverse_frequencies
from outrider_torch.heads.eagle import Attend
from outrider_train.kinds.experts import MixtureOfExperts
from outrider_train.target.llama import GatedMlp

_SUPPORTED = frozenset(("rotary_dim", "gated_attention", "recurrent", "experts"))
"""Differences from Llama that the head shares, and one that does not concern it."""


class OffsetNorm(nn.Module):
    """RMS norm whose weight is stored less ``offset``."""

    def __init__(self, size: int, eps: float, offset: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((size,), 1.0 - offset))
        self.eps, self.offset = eps, offset

    def forward(self, x: Tensor) -> Tensor:
        weight = (self.weight + self.offset).to(x.dtype)
        return F.rms_norm(x, weight.shape, weight, self.eps)


class _Attention(nn.Module):
    def __init__(self, c: ModelConfig, offset: float) -> None:
        super().__init__()
        self.c = c
        q, kv = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
        self.q_proj = nn.Linear(c.hidden_size, 2 * q if c.gated_attention else q, bias=c.attention_bias)
        self.k_proj = nn.Linear(c.hidden_size, kv, bias=c.attention_bias)
        self.v_proj = nn.Linear(c.hidden_size, kv, bias=c.attention_bias)
        self.o_proj = nn.Linear(q, c.hidden_size, bias=False)
        self.q_norm = OffsetNorm(c.head_dim, c.rms_norm_eps, offset) if c.qk_norm else None
        self.k_norm = OffsetNorm(c.head_dim, c.rms_norm_eps, offset) if c.qk_norm else None
        turned = c.rotary_dim or c.head_dim
        inverse = inverse_frequencies(turned, c.rope_theta, c.rope_scaling)
        self.register_buffer("inverse", torch.from_numpy(inverse).float(), persistent=False)

    def forward(self, x: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        q, gate = self.q_proj(x).unflatten(-1, (self.c.num_heads, -1)), None
        if self.c.gated_attention:
            q, gate = q.chunk(2, dim=-1)
        if self.q_norm is not None:
            q = self.q_norm(q)
        out = attend(self._turned(q, positions), *self.keys(x, positions))
        return self.o_proj((out if gate is None else out * gate.sigmoid()).flatten(-2))  # type: ignore[no-any-return]

    def keys(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of rows, [..., kv_heads, head_dim] each."""
        k, v = (p(x).unflatten(-1, (-1, self.c.head_dim)) for p in (self.k_proj, self.v_proj))
        if self.k_norm is not None:
            k = self.k_norm(k)
        return self._turned(k, positions), v

    def _turned(self, x: Tensor, positions: Tensor) -> Tensor:
        """The first dimensions of each head of x [..., heads, head_dim] rotated, pairs split by halves."""
        inverse = self.inverse
        assert isinstance(inverse, Tensor)
        angles = positions[..., None].float() * inverse
        angles = torch.cat([angles, angles], dim=-1)[..., None, :]
        turned, rest = x[..., : angles.shape[-1]], x[..., angles.shape[-1] :]
        first, second = turned.chunk(2, dim=-1)
        turned = turned * angles.cos() + torch.cat([-second, first], dim=-1) * angles.sin()
        return torch.cat([turned.to(x.dtype), rest], dim=-1)


class _Layer(nn.Module):
    def __init__(self, c: ModelConfig, offset: float) -> None:
        super().__init__()
        self.input_layernorm = OffsetNorm(c.hidden_size, c.rms_norm_eps, offset)
        self.self_attn = _Attention(c, offset)
        self.post_attention_layernorm = OffsetNorm(c.hidden_size, c.rms_norm_eps, offset)
        self.mlp = MixtureOfExperts(c) if c.is_sparse(c.num_layers - 1) else GatedMlp(c)


class MtpLayer(nn.Module):
    """The head. Its state has the tensors' names without ``mtp.``."""

    def __init__(self, config: ModelConfig, norm_offset: float) -> None:
        """``norm_offset``: of the target's family (``Family.norm_offset``). Raises ``ConfigError``."""
        super().__init__()
        unlike = config.differences - _SUPPORTED
        if unlike:
            raise ConfigError(
                f"a draft head of a {config.family} model cannot be trained: {', '.join(sorted(unlike))} differ from "
                "Llama's; use another target"
            )
        d, eps = config.hidden_size, config.rms_norm_eps
        self.fc = nn.Linear(2 * d, d, bias=False)
        self.pre_fc_norm_embedding = OffsetNorm(d, eps, norm_offset)
        self.pre_fc_norm_hidden = OffsetNorm(d, eps, norm_offset)
        self.layers = nn.ModuleList([_Layer(config, norm_offset)])
        self.norm = OffsetNorm(d, eps, norm_offset)

    @property
    def layer(self) -> _Layer:
        """The decoder layer."""
        layer = self.layers[0]
        assert isinstance(layer, _Layer)
        return layer

    def inputs(self, embeddings: Tensor, features: Tensor) -> Tensor:
        """The layer's input [..., d] for embeddings of tokens t + 1 and features of rows t, float [..., d] each."""
        both = self.pre_fc_norm_embedding(embeddings), self.pre_fc_norm_hidden(features)
        return self.fc(torch.cat(both, dim=-1))  # type: ignore[no-any-return]

    def forward(self, embeddings: Tensor, features: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Run rows as in ``inputs``; ``positions``: int64 [...], each row's t. Returns a_t, float [..., d]."""
        layer, x = self.layer, self.inputs(embeddings, features)
        x = x + layer.self_attn(layer.input_layernorm(x), positions, attend)
        return self.norm(x + layer.mlp(layer.post_attention_layernorm(x)))  # type: ignore[no-any-return]

    def keys(self, embeddings: Tensor, features: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values alone of rows as in ``forward``: [..., kv_heads, head_dim] each."""
        layer = self.layer
        return layer.self_attn.keys(layer.input_layernorm(self.inputs(embeddings, features)), positions)
