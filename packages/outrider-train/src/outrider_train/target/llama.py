"""The Llama family as a differentiable module: from dense sequences to hidden states and inner features.

The engine's own ``models.llama`` packs weights and keeps a cache; it cannot be trained. This module can, and reads the
same checkpoints; ``packages/outrider-train/tests/training/test_llama.py`` compares the two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from outrider.errors import ConfigError
from outrider.models.config import ModelConfig
from outrider.models.frequencies import inverse_frequencies
from outrider.weights.files.layout import expected_shapes
from outrider.weights.folder import open_checkpoint
from outrider_torch.models.stored import torch_tensors

PastKeyValues = list[tuple[Tensor, Tensor]]
"""Keys and values of each layer, [B, kv_heads, rows, head_dim], keys rotated."""


@dataclass
class LlamaOutput:
    """``hidden``: [B, L, d] after the final norm. ``features``: [B, L, len(layers) * d], inner residual streams."""

    hidden: Tensor
    features: Tensor | None
    past: PastKeyValues


class _Norm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)


class _SelfAttention(nn.Module):
    def __init__(self, c: ModelConfig) -> None:
        super().__init__()
        self.c = c
        q, kv = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
        self.q_proj = nn.Linear(c.hidden_size, q, bias=c.attention_bias)
        self.k_proj = nn.Linear(c.hidden_size, kv, bias=c.attention_bias)
        self.v_proj = nn.Linear(c.hidden_size, kv, bias=c.attention_bias)
        self.o_proj = nn.Linear(q, c.hidden_size, bias=False)
        self.q_norm = _Norm(c.head_dim, c.rms_norm_eps) if c.qk_norm else None
        self.k_norm = _Norm(c.head_dim, c.rms_norm_eps) if c.qk_norm else None

    def forward(
        self, x: Tensor, turn: Callable[[Tensor], Tensor], mask: Tensor | None, past: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        q, k, v = (p(x).unflatten(-1, (-1, self.c.head_dim)) for p in (self.q_proj, self.k_proj, self.v_proj))
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = turn(q).transpose(1, 2), turn(k).transpose(1, 2), v.transpose(1, 2)  # [B, heads, L, head_dim]
        if past is not None:
            k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
        group = self.c.num_heads // self.c.num_kv_heads
        keys, values = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        out = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, is_causal=mask is None)
        return self.o_proj(out.transpose(1, 2).flatten(-2)), (k, v)


class GatedMlp(nn.Module):
    """down(silu(gate x) * up x), as Llama has it."""

    def __init__(self, c: ModelConfig, size: int | None = None) -> None:
        """``size``: the intermediate one; None: the model's."""
        super().__init__()
        size = c.intermediate_size if size is None else size
        self.gate_proj = nn.Linear(c.hidden_size, size, bias=False)
        self.up_proj = nn.Linear(c.hidden_size, size, bias=False)
        self.down_proj = nn.Linear(size, c.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))  # type: ignore[no-any-return]


class _Layer(nn.Module):
    def __init__(self, c: ModelConfig) -> None:
        super().__init__()
        self.input_layernorm = _Norm(c.hidden_size, c.rms_norm_eps)
        self.self_attn = _SelfAttention(c)
        self.post_attention_layernorm = _Norm(c.hidden_size, c.rms_norm_eps)
        self.mlp = GatedMlp(c)


class _Body(nn.Module):
    def __init__(self, c: ModelConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        self.layers = nn.ModuleList(_Layer(c) for _ in range(c.num_layers))
        self.norm = _Norm(c.hidden_size, c.rms_norm_eps)


class Llama(nn.Module):
    """The model. Parameters have their Hugging Face names; initial weights are normal with deviation 0.02 (GPT-2)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        if not config.is_llama:
            raise ConfigError(
                f"training on a {config.family} model is not supported: its layers are not Llama's; use a target of "
                "llama, mistral, qwen2 or qwen3"
            )
        self.config = config
        self.model = _Body(config)
        self.lm_head = None if config.tie_embeddings else nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self._inverse = _inverse(config)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1 and parameter.device.type != "meta":
                last = name.endswith(("o_proj.weight", "down_proj.weight"))  # residual branches: GPT-2's scaling
                nn.init.normal_(parameter, std=0.02 / (2 * config.num_layers) ** 0.5 if last else 0.02)

    @property
    def embedding(self) -> Tensor:
        """float [vocab, d]."""
        return self.model.embed_tokens.weight

    @property
    def head(self) -> Tensor:
        """The LM head's weight, float [vocab, d]; the embedding where the two are tied."""
        return self.embedding if self.lm_head is None else self.lm_head.weight

    def forward(
        self,
        x: Tensor,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
        past: PastKeyValues | None = None,
        layers: Sequence[int] = (),
        keep: bool = False,
    ) -> LlamaOutput:
        """Run over dense rows.

        Args:
            x: int64 [B, L] token ids, or float [B, L, d] input embeddings.
            positions: int64 [B, L]; None: 0, 1, 2 ...
            mask: bool [B, 1, L, past + L], which keys each query attends to; None: causal, without ``past``.
            past: keys and values of earlier rows.
            layers: layer counts whose residual streams are returned as ``features``.
            keep: also return every layer's keys and values, those of ``past`` included.
        """
        if not x.is_floating_point():
            x = F.embedding(x, self.embedding)
        if positions is None:
            positions = torch.arange(x.shape[1], device=x.device).expand(x.shape[:2])
        angles = positions[..., None].float() * self._inverse.to(x.device)
        angles = torch.cat([angles, angles], dim=-1)[:, :, None]
        cos, sin = angles.cos(), angles.sin()

        def turn(t: Tensor) -> Tensor:
            first, second = t.chunk(2, dim=-1)
            return (t * cos + torch.cat([-second, first], dim=-1) * sin).to(t.dtype)

        if mask is None and self.config.sliding_window is not None and self.config.sliding_window < x.shape[1]:
            at = torch.arange(x.shape[1], device=x.device)
            back = at[:, None] - at
            mask = ((back >= 0) & (back < self.config.sliding_window))[None, None]
        found: dict[int, Tensor] = {}
        kept: PastKeyValues = []
        for i, layer in enumerate(self.model.layers):
            assert isinstance(layer, _Layer)
            before = None if past is None else past[i]
            out, kv = layer.self_attn(layer.input_layernorm(x), turn, mask, before)
            x = x + out
            x = x + layer.mlp(layer.post_attention_layernorm(x))
            if keep:
                kept.append(kv)
            if i + 1 in layers:
                found[i + 1] = x
        features = torch.cat([found[n] for n in layers], dim=-1) if layers else None
        return LlamaOutput(self.model.norm(x), features, kept)


def load_llama(folder: Path, dtype: torch.dtype) -> Llama:
    """The model of a folder, frozen, in ``dtype``. Raises ``ModelFormatError`` as ``models.load`` does."""
    checkpoint = open_checkpoint(folder)
    with torch.device("meta"):
        model = Llama(checkpoint.config)
    names = expected_shapes(checkpoint.config)
    tensors = torch_tensors(checkpoint)
    model.load_state_dict({n: tensors[n].to(dtype, copy=True) for n in names}, assign=True)
    model._inverse = _inverse(checkpoint.config)
    return model.requires_grad_(False).eval()


def _inverse(config: ModelConfig) -> Tensor:
    """float32 [head_dim / 2]."""
    return torch.from_numpy(inverse_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)).float()


def truncated(model: Llama, layers: int) -> dict[str, Any]:
    """The state of ``model``'s first ``layers`` layers with its embedding, final norm and LM head."""
    return {
        name: value
        for name, value in model.state_dict().items()
        if not name.startswith("model.layers.") or int(name.split(".")[2]) < layers
    }
