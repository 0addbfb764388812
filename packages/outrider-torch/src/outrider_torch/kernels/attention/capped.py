"""Attention with scores capped by a tanh (Gemma 2), which torch's fused kernels lack."""

from __future__ import annotations

import torch
from torch import Tensor

from outrider_torch.kernels.attention.tree_tiles import KEY_BLOCK


def capped_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float, cap: float) -> Tensor:
    """As ``scaled_dot_product_attention``, with ``cap * tanh(score / cap)`` for each score.

    q: [tiles, kv_heads, n, d]; k, v: [tiles, kv_heads, keys, d]; mask: [tiles, 1, n, keys] -> [tiles, kv_heads, n, d].

    On a CPU each product is one call of one shape, n queries with a block of keys, so a row's bits depend on no other
    row. Blocks are merged in order, and a fully masked block adds exact zeros.
    """
    if q.is_cuda:
        return _block(q.float(), k.float(), v.float(), mask, scale, cap)[0].to(q.dtype)
    out = torch.empty_like(q)
    for tile in range(q.shape[0]):
        for head in range(q.shape[1]):
            out[tile, head] = _in_blocks(q[tile, head], k[tile, head], v[tile, head], mask[tile, 0], scale, cap)
    return out


def _in_blocks(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float, cap: float) -> Tensor:
    q, total = q.float(), torch.zeros(q.shape, dtype=torch.float32)
    most, weight = torch.full((len(q), 1), -torch.inf), torch.zeros(len(q), 1)
    for at in range(0, k.shape[0], KEY_BLOCK):
        keys = slice(at, at + KEY_BLOCK)
        part, m, w = _block(q, k[keys].float(), v[keys].float(), mask[:, keys], scale, cap)
        high = torch.maximum(most, m)
        old, new = ((t - high).nan_to_num(nan=-torch.inf).exp() for t in (most, m))  # 0 without any key
        total, weight, most = total * old + part * w * new, weight * old + w * new, high
    return (total / weight).to(v.dtype)


def _block(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float, cap: float) -> tuple[Tensor, Tensor, Tensor]:
    """Attention [..., n, d] over these keys, the largest score of each row, and its sum of exponentials."""
    scores = torch.tanh(q @ k.mT * scale / cap) * cap + mask
    most = scores.amax(dim=-1, keepdim=True)
    weights = (scores - most).nan_to_num(nan=-torch.inf).exp()
    total = weights.sum(dim=-1, keepdim=True)
    return weights @ v / total.clamp_min(1e-30), most, total
