"""Attention of a head's layers over its own cache, kept simple: a draft's rounding affects only acceptance."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from outrider.cache import KVCache
from outrider.models.batch import Span
from outrider_torch.heads.eagle import Attend


def attention(cache: KVCache, spans: Sequence[Span], window: int = 0) -> Attend:
    """Attention that writes keys and values to ``cache``, which needs room; each row attends to its request's rows.

    ``window``: rows that a row attends to, itself included, in a tree along its path; 0: all.
    The n-th call is the n-th layer's.
    """
    layers = itertools.count()

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        outs: list[Tensor] = []
        first, layer = 0, next(layers)
        for each in spans:
            part, end = slice(first, first + each.count), each.start + each.count
            cache.write(layer, each.slot, each.start, k[part], v[part])
            outs.append(_attend(q[part], *cache.read(layer, each.slot, end), _visible(each, q.device, window)))
            first += each.count
        return outs[0] if len(outs) == 1 else torch.cat(outs)

    return attend


def _visible(span: Span, device: torch.device, window: int) -> Tensor | None:
    """bool [count, start + count]; None: all of it."""
    reaches = window and span.start + span.count > window
    if span.count == 1 and span.mask is None and not reaches:
        return None
    visible = torch.ones(span.count, span.start + span.count, dtype=torch.bool, device=device).tril(span.start)
    if span.mask is not None:
        visible[-len(span.mask) :, -span.mask.shape[1] :] = torch.from_numpy(span.mask).to(device)
    if reaches:
        visible &= visible.flip(1).cumsum(1).flip(1) <= window  # visible rows from there on
    return visible


def _attend(q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None) -> Tensor:
    """q: [n, heads, d]; k, v: [keys, kv_heads, d] -> [n, heads, d]. Heads of a key head are folded into its rows."""
    n, heads, d = q.shape
    group = heads // k.shape[1]
    folded = q.view(n, -1, group, d).permute(1, 2, 0, 3).reshape(1, -1, group * n, d)
    mask = None if visible is None else visible.repeat(group, 1)
    out = F.scaled_dot_product_attention(folded, k.transpose(0, 1)[None], v.transpose(0, 1)[None], attn_mask=mask)
    return out.view(-1, group, n, d).permute(2, 0, 1, 3).reshape(n, heads, d)
