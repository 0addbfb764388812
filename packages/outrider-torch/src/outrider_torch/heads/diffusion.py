"""The heads of DFlash and DFlash 2 as published (Chen, Liang, Liu 2026, arXiv 2602.06036): they fill in masked blocks.

::

    position   n - 1          n        n + 1             n - 1: the last token; its feature is not known yet
    reads      E[last token]  E[mask]  E[mask]  ...
    guesses                   token n  token n + 1

Every row of a block attends to all its rows and, in each layer, to keys and values projected from the fused
features of all tokens before the block. So features pass through no layer, and a block takes one pass.

DFlash 2 adds, around attention and MLP, a short causal convolution over the rows of a block, whose taps depend on the
row, and a selector that scores a row's best candidates by the token before them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from outrider.drafters.heads.config import HeadConfig
from outrider_torch.heads.eagle import Attend, HeadNorm, Mlp, apply_rotary, rotary
from outrider_torch.heads.vocabulary import ScoringHead


class DiffusionAttention(nn.Module):
    """Projections, a norm for each head of queries and keys, rotary positions (as in Qwen3)."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.config = config
        d, own = config.hidden_size, config.head_dim
        self.q_proj = nn.Linear(d, config.num_heads * own, bias=False)
        self.k_proj = nn.Linear(d, config.num_kv_heads * own, bias=False)
        self.v_proj = nn.Linear(d, config.num_kv_heads * own, bias=False)
        self.o_proj = nn.Linear(config.num_heads * own, d, bias=False)
        self.q_norm = HeadNorm(own, config.rms_norm_eps)
        self.k_norm = HeadNorm(own, config.rms_norm_eps)
        has_sinks = config.dspark is not None and config.dspark.sinks
        self.sinks = nn.Parameter(torch.zeros(config.num_heads)) if has_sinks else None

    def queries(self, x: Tensor, positions: Tensor) -> Tensor:
        """x: [n, d] -> [n, heads, head_dim]."""
        q = self.q_norm(self.q_proj(x).unflatten(-1, (-1, self.config.head_dim)))
        return apply_rotary(q, *rotary(positions, self.config))

    def keys(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of rows or of fused features x: [n, d] -> [n, kv_heads, head_dim] each."""
        k, v = (p(x).unflatten(-1, (-1, self.config.head_dim)) for p in (self.k_proj, self.v_proj))
        return apply_rotary(self.k_norm(k), *rotary(positions, self.config)), v


class BlockConvolution(nn.Module):
    """Convolutions before and after a part of a layer, over the rows of each block: tap i reads i rows above.

    A tap is a learned vector plus one number per group of channels, projected from the row.
    """

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        d, self.taps, self.group = config.hidden_size, config.conv_taps, config.conv_group
        self.rows = config.block_rows
        self.base_kernel = nn.Parameter(torch.zeros(2, self.taps, d))
        self.kernel_projection = nn.Linear(d, 2 * self.taps * (d // self.group), bias=False)

    def kernels(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The taps before and after the part for rows x [n, d]: [n, taps, d] each."""
        own = self.kernel_projection(x).unflatten(-1, (2, self.taps, -1)).repeat_interleave(self.group, dim=-1)
        before, behind = (own + self.base_kernel.to(own.dtype)).unbind(-3)
        return before, behind

    def convolve(self, x: Tensor, kernel: Tensor) -> Tensor:
        """Convolve x: [n, d], whole blocks, with kernel: [n, taps, d] -> [n, d]."""
        blocks, kernel = x.unflatten(0, (-1, self.rows)), kernel.unflatten(0, (-1, self.rows))
        out: Tensor = blocks * kernel[:, :, 0]
        for tap in range(1, min(self.taps, self.rows)):
            out = out + F.pad(blocks[:, :-tap], (0, 0, tap, 0)) * kernel[:, :, tap]
        return out.flatten(0, 1)


class DiffusionLayer(nn.Module):
    """A Qwen3 layer over whole blocks."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.input_layernorm = HeadNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = DiffusionAttention(config)
        self.post_attention_layernorm = HeadNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = Mlp(config)
        self.attention_conv = BlockConvolution(config) if config.conv_taps else None
        self.mlp_conv = BlockConvolution(config) if config.conv_taps else None

    def forward(self, x: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """x: [n, d], rows of blocks."""

        def attention(read: Tensor) -> Tensor:
            seen = attend(self.self_attn.queries(read, positions), *self.self_attn.keys(read, positions))
            out: Tensor = self.self_attn.o_proj(seen.flatten(-2))
            return out

        x = x + _between(self.attention_conv, attention, self.input_layernorm(x))
        return x + _between(self.mlp_conv, self.mlp, self.post_attention_layernorm(x))


def _between(convolution: BlockConvolution | None, part: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """A part of a layer, between its convolutions if it has them."""
    if convolution is None:
        return part(x)
    before, behind = convolution.kernels(x)
    return convolution.convolve(part(convolution.convolve(x, before)), behind)


class CandidateSelector(nn.Module):
    """Additions to a token's score by the token before it: (predecessor * projected row) . successor."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.predecessor_codebook = nn.Parameter(torch.zeros(config.vocab_size, config.selector_rank))
        self.successor_codebook = nn.Parameter(torch.zeros(config.vocab_size, config.selector_rank))
        self.hidden_projection = nn.Linear(config.hidden_size, config.selector_rank, bias=False)

    def forward(self, hidden: Tensor, before: Tensor, candidates: Tensor) -> Tensor:
        """hidden: [n, d]; before: int64 [n], the tokens before; candidates: int64 [n, k] -> [n, k]."""
        context = self.predecessor_codebook[before] * self.hidden_projection(hidden)
        gained: Tensor = self.successor_codebook[candidates] @ context[..., None]
        return gained.squeeze(-1)


class DiffusionHead(ScoringHead):
    """A head of kind "diffusion". Tensor names are those of published checkpoints."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__(config)
        d = config.hidden_size
        self.fc = nn.Linear(len(config.feature_layers) * d, d, bias=False)
        self.hidden_norm = HeadNorm(d, config.rms_norm_eps)
        self.layers = nn.ModuleList(DiffusionLayer(config) for _ in range(config.num_layers))
        self.norm = HeadNorm(d, config.rms_norm_eps)
        self.candidate_selector = CandidateSelector(config) if config.selector_rank else None

    @property
    def block_size(self) -> int:
        """Rows of a block: the last token's, and masked ones."""
        return self.config.block_rows

    def fuse(self, features: Tensor) -> Tensor:
        """Fused features [n, d] of the streams after ``feature_layers``; keys and values are projected from them."""
        return self.hidden_norm(self.fc(features))  # type: ignore[no-any-return]

    def context(self, fused: Tensor, positions: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of fused features, [n, kv_heads, head_dim] each, for every layer."""
        return [layer.self_attn.keys(fused, positions) for layer in self.own_layers()]

    def forward(self, embeddings: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Whole blocks, one after the other, through all layers.

        Args:
            embeddings: float [n, d], of the last token and of the mask.
            positions: int64 [n].
            attend: attention with its mask; called once per layer, lowest first.

        Returns:
            The LM head's input: float [n, d].
        """
        x = embeddings
        for layer in self.own_layers():
            x = layer(x, positions, attend)
        return self.norm(x)  # type: ignore[no-any-return]

    def own_layers(self) -> list[DiffusionLayer]:
        """The layers, lowest first."""
        return [layer for layer in self.layers if isinstance(layer, DiffusionLayer)]


def block_tokens(last: int, config: HeadConfig) -> list[int]:
    """Input tokens of a block after the token ``last``."""
    assert config.mask_token_id is not None
    return [last, *[config.mask_token_id] * (config.block_rows - 1)]
