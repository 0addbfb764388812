"""Attention over the cache, arranged so that a row's result never depends on its company.

A fused attention kernel picks its code by the shape it is given: another number of queries or keys, another
order of additions, other last bits. So every call made here has one shape per block of keys:

* queries go in tiles of ``TILE`` rows, stacked along the batch dimension; the last tile is padded;
* the query heads that share a key head are folded into the rows of their tile, which reads each key once;
* keys come in whole blocks of ``KEY_BLOCK``, counted from position 0. The kernel itself works block by block and
  a block that is wholly masked adds exact zeros, so a row gives the same bits at any padded length.

What is left to trust (a row's place in its tile, an ancestor's place in the cache) is tested:
``tests/models/test_invariance.py``, and by ``outrider doctor`` on the machine at hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from outrider.cache.contiguous import KEY_BLOCK
from outrider.cache.protocol import KVCache
from outrider.models.base import Span

TILE = 4  # fewer and the kernel takes another path; more and plain decoding pays for padding


@dataclass(frozen=True)
class Piece:
    """Consecutive rows of one span that attend over the same number of keys."""

    slot: int
    first: int  # packed rows [first, first + count)
    count: int
    keys: int  # a multiple of KEY_BLOCK
    mask: Tensor  # float [tiles, 1, TILE * group, keys]: 0 where a row may look, -inf elsewhere


@dataclass(frozen=True)
class Plan:
    """Who attends to what in one run; built once and used by every layer."""

    spans: tuple[tuple[Span, int], ...]  # each span with its first packed row
    pieces: tuple[Piece, ...]


def plan(
    spans: Sequence[Span], positions: Tensor, *, group: int, window: int | None, dtype: torch.dtype
) -> Plan:
    """Cut spans into pieces and draw their masks. ``group`` is query heads per key head."""
    placed: list[tuple[Span, int]] = []
    pieces: list[Piece] = []
    row = 0
    for span in spans:
        placed.append((span, row))
        done = 0
        while done < span.count:
            # Rows of a prompt need no more keys than their own position; a tree's rows all need the last one.
            end = span.start + (span.count if span.mask is not None else done + 1)
            keys = -(-end // KEY_BLOCK) * KEY_BLOCK
            count = min(span.count, keys - span.start) - done
            visible = _visible(span, done, count, keys, positions[row : row + span.count], window)
            mask = _fold_mask(visible, group, dtype)
            pieces.append(Piece(span.slot, row + done, count, keys, mask))
            done += count
        row += span.count
    return Plan(tuple(placed), tuple(pieces))


def _visible(span: Span, done: int, count: int, keys: int, positions: Tensor, window: int | None) -> Tensor:
    """bool [count, keys]: which cache rows each of the span's rows ``done ..`` may look at."""
    columns = torch.arange(keys, device=positions.device)
    rows = torch.arange(done, done + count, device=positions.device)[:, None]
    if span.mask is None:
        visible = columns <= span.start + rows
    else:
        visible = (columns < span.start).repeat(count, 1)
        visible[:, span.start : span.start + span.count] = span.mask[done : done + count]
    if window is not None:
        at = columns.clone()  # the position each cache row holds: its index, but its depth inside a tree
        held = min(span.count, keys - span.start)
        at[span.start : span.start + held] = positions[:held]
        visible &= at > positions[done : done + count, None] - window
    return visible


def _fold_mask(visible: Tensor, group: int, dtype: torch.dtype) -> Tensor:
    """bool [count, keys] -> additive [tiles, 1, TILE * group, keys]; padded rows see everything."""
    count, keys = visible.shape
    tiles = -(-count // TILE)
    mask = torch.zeros(tiles * TILE, keys, dtype=dtype, device=visible.device)
    mask[:count].masked_fill_(~visible, float("-inf"))
    return mask.view(tiles, 1, TILE, 1, keys).expand(-1, -1, -1, group, -1).reshape(tiles, 1, TILE * group, keys)


def attend(q: Tensor, cache: KVCache, layer: int, plan: Plan) -> Tensor:
    """Attention of q: [T, heads, head_dim] over the cache rows each piece may see -> [T, heads * head_dim]."""
    outs = [_attend(q[p.first : p.first + p.count], *cache.read(layer, p.slot, p.keys), p.mask) for p in plan.pieces]
    return outs[0] if len(outs) == 1 else torch.cat(outs)


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """q: [n, heads, d]; k, v: [keys, kv_heads, d]; mask: [tiles, 1, TILE * group, keys] -> [n, heads * d]."""
    n, heads, d = q.shape
    kv_heads, tiles = k.shape[1], mask.shape[0]
    if n < tiles * TILE:
        q = F.pad(q, (0, 0, 0, 0, 0, tiles * TILE - n))
    q = q.view(tiles, TILE, kv_heads, -1, d).transpose(1, 2).reshape(tiles, kv_heads, -1, d)
    k = k.transpose(0, 1).expand(tiles, -1, -1, -1)
    v = v.transpose(0, 1).expand(tiles, -1, -1, -1)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return out.view(tiles, kv_heads, TILE, -1).transpose(1, 2).reshape(tiles * TILE, heads * d)[:n]
