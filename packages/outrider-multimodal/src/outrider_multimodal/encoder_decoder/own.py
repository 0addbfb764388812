"""The decoder's self-attention over its cache, for all layers of one forward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from outrider.cache import KVCache
from outrider.models.batch import Span
from outrider.models.native_passes import CacheView, check_status, span_structs
from outrider.native.context import NativeContext
from outrider.native.library import native_library
from outrider_multimodal.encoder_decoder.config import EncoderDecoderConfig
from outrider_multimodal.encoder_decoder.relative import RelativeBias
from outrider_torch.kernels.attention.attention import AttentionPlan, attend, plan

OwnAttention = Callable[[int, Tensor], Tensor]
"""Attention of a layer's q: [T, heads, head_dim] -> [T, heads * head_dim]; keys and values are in the cache."""


def native_attention(
    config: EncoderDecoderConfig, spans: Sequence[Span], cache: KVCache, view: CacheView, context: NativeContext
) -> OwnAttention:
    """Self-attention by the native library, in a context. ``view``: of ``cache``."""
    library, (structs, held) = native_library(), span_structs(spans, cache)
    sizes, scale = (config.num_heads, config.num_heads, config.head_dim), config.attention_scale or 0.0
    width = config.num_heads * config.head_dim

    def run(layer: int, q: Tensor) -> Tensor:
        q, out = q.contiguous(), torch.empty(q.shape[0], width)
        check_status(
            library.outrider_attend(
                context.address, view.address, layer, *sizes, scale, len(spans), structs, q.data_ptr(), out.data_ptr()
            )
        )
        assert held is not None  # keeps the arrays that the structs point to
        return out

    return run


def torch_attention(
    config: EncoderDecoderConfig,
    spans: Sequence[Span],
    cache: KVCache,
    positions: Tensor,
    dtype: torch.dtype,
    bias: RelativeBias | None,
) -> OwnAttention:
    """Self-attention on torch. ``positions``: int64 [T]. ``bias``: added to scores by distance."""
    drawn = plan(
        spans,
        group=1,
        kv_heads=config.num_heads,
        window=None,
        rows=len(positions),
        dtype=dtype,
        device=positions.device,
    )
    if bias is not None:
        drawn = _biased(drawn, positions, bias)
    return lambda layer, q: attend(q, cache, layer, drawn, config.attention_scale)


def _biased(drawn: AttentionPlan, positions: Tensor, bias: RelativeBias) -> AttentionPlan:
    pieces = []
    for piece in drawn.pieces:
        tiles, _, tile, keys = piece.mask.shape
        at = positions[torch.tensor([max(row, 0) for row in piece.packed], device=positions.device)]
        added = bias(F.pad(at, (0, tiles * tile - len(at))), keys)  # [heads, rows, keys]
        added = added.view(-1, tiles, tile, keys).transpose(0, 1)
        pieces.append(replace(piece, mask=(piece.mask + added).contiguous()))
    return replace(drawn, pieces=tuple(pieces))
