"""Attention over the cache, arranged so that a row's result never depends on its company.

A fused attention kernel picks its code by the shape it is given: another number of queries or keys, another
order of additions, other last bits. So every call made here has one shape per block of keys:

* queries go in tiles of ``TILE`` rows, stacked along the batch dimension; the last tile is padded;
* the query heads that share a key head are folded into the rows of their tile, which reads each key once;
* keys come in blocks counted from position 0. The kernel itself works block by block, and a block that is wholly
  masked adds exact zeros, so a row gives the same bits at any padded length (``models.key_blocks``);
* keys come in the order of their positions, as the order of additions is that of the keys. A tree is therefore
  taken apart into chains, and each reads the cache in its own order.

What is left to trust (a row's place in its tile) is tested: ``tests/models/test_invariance.py``, and by
``outrider doctor`` on the machine at hand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from outrider.cache.protocol import KVCache
from outrider.models.base import Span
from outrider.models.key_blocks import padded

TILE = 4  # fewer and the kernel takes another path; more and plain decoding pays for padding


@dataclass(frozen=True)
class Piece:
    """Rows that continue one another and attend over the same number of keys."""

    slot: int
    rows: slice | Tensor  # packed rows
    keys: int  # as many as ``padded`` says
    mask: Tensor  # float [tiles, 1, TILE * group, keys]: 0 where a row may look, -inf elsewhere
    order: Tensor | None  # int64 [keys], cache rows by position; None: the cache is in order
    reach: int  # cache rows to read


@dataclass(frozen=True)
class Plan:
    """Who attends to what in one run; built once and used by every layer."""

    spans: tuple[tuple[Span, int], ...]  # each span with its first packed row
    pieces: tuple[Piece, ...]
    inverse: Tensor | None  # int64 [T], where the pieces' results belong; None: they are in packing order


def plan(
    spans: Sequence[Span],
    *,
    group: int,
    kv_heads: int,
    window: int | None,
    short: tuple[int, ...],
    rows: int,
    dtype: torch.dtype,
    device: torch.device,
) -> Plan:
    """Cut spans into pieces and draw their masks.

    Args:
        group: query heads per key head.
        kv_heads: key heads; a call for one key head gets two tiles at least, as the kernel hands a lone tile to a
            matrix library that may share it out among threads, and then adds up in another order.
        window: positions a row looks back at most, itself included.
        rows: rows of the run; more than the spans' only for a chain alone, whose tile they fill.
        short: lengths that a last block of keys may have (``models.key_blocks.short_blocks``).
    """
    placed: list[tuple[Span, int]] = []
    pieces: list[Piece] = []
    packed: list[int] = []  # rows in the order of the pieces
    row = 0
    for span in spans:
        placed.append((span, row))
        for fresh, path in _chains(span):
            first = _base(span) + len(path) - len(fresh)  # position of the chain's first new row
            done = 0
            while done < len(fresh):
                keys = padded(first + done + 1, short)  # a row needs no more keys than its own position
                count = min(len(fresh), keys - first) - done
                visible = _visible(first + done, count, keys, window, device)
                mask = _fold_mask(visible, group, 2 if kv_heads == 1 else 1, dtype)
                at = [row + i for i in fresh[done : done + count]]
                if span.mask is None:
                    pieces.append(Piece(span.slot, slice(at[0], at[-1] + 1), keys, mask, None, keys))
                else:
                    order = _order(span, path, keys, device)
                    reach = max(keys, span.start + span.count)
                    pieces.append(Piece(span.slot, torch.tensor(at, device=device), keys, mask, order, reach))
                packed += at
                done += count
        row += span.count
    if rows > row:
        last = pieces[-1].rows
        assert isinstance(last, slice)
        pieces[-1] = replace(pieces[-1], rows=slice(last.start, rows))
    trees = any(span.mask is not None for span in spans)
    inverse = torch.tensor(packed, device=device).argsort() if trees else None
    return Plan(tuple(placed), tuple(pieces), inverse)


def _base(span: Span) -> int:
    """The cache row where the span's tree begins, which may be before its first new row."""
    return span.start if span.mask is None else span.start + span.count - span.mask.shape[1]


def _chains(span: Span) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    """The span's rows as chains: the new rows each is answerable for, and its whole path, in rows of the tree.

    ::

        tree 0 ── 1 ── 3    ->    (0, 1, 3) of path (0, 1, 3)
             └── 2                (2,)      of path (0, 2)
    """
    if span.mask is None:
        yield range(span.count), range(span.count)
        return
    before = span.mask.shape[1] - span.count
    leaves = span.mask[:, before:].sum(dim=0) == 1  # seen by no new row but itself
    seen: set[int] = set()
    for leaf in leaves.nonzero().flatten().tolist():
        path: list[int] = span.mask[leaf].nonzero().flatten().tolist()
        yield [row - before for row in path if row >= before and row not in seen], path
        seen.update(path)


def _order(span: Span, path: Sequence[int], keys: int, device: torch.device) -> Tensor:
    """int64 [keys]: the cache row that holds each position of a chain; any row where there is none."""
    order, base = torch.arange(keys, device=device), _base(span)
    held = min(len(path), keys - base)
    order[base : base + held] = base + torch.tensor(path[:held], device=device)
    return order


def _visible(first: int, count: int, keys: int, window: int | None, device: torch.device) -> Tensor:
    """bool [count, keys]: which positions each of the rows at positions ``first ..`` may look at."""
    columns = torch.arange(keys, device=device)
    at = torch.arange(first, first + count, device=device)[:, None]
    visible = columns <= at
    return visible if window is None else visible & (columns > at - window)


def _fold_mask(visible: Tensor, group: int, least_tiles: int, dtype: torch.dtype) -> Tensor:
    """bool [count, keys] -> additive [tiles, 1, TILE * group, keys]; padded rows see everything."""
    count, keys = visible.shape
    tiles = max(-(-count // TILE), least_tiles)
    mask = torch.zeros(tiles * TILE, keys, dtype=dtype, device=visible.device)
    mask[:count].masked_fill_(~visible, float("-inf"))
    return mask.view(tiles, 1, TILE, 1, keys).expand(-1, -1, -1, group, -1).reshape(tiles, 1, TILE * group, keys)


def attend(q: Tensor, cache: KVCache, layer: int, plan: Plan) -> Tensor:
    """Attention of q: [T, heads, head_dim] over the cache rows each piece may see -> [T, heads * head_dim]."""
    outs = [_attend(q[p.rows], *_keys(cache, layer, p), p.mask) for p in plan.pieces]
    out = outs[0] if len(outs) == 1 else torch.cat(outs)
    return out if plan.inverse is None else out[plan.inverse]


def _keys(cache: KVCache, layer: int, piece: Piece) -> tuple[Tensor, Tensor]:
    """Keys and values [keys, kv_heads, head_dim] in the order of their positions."""
    k, v = cache.read(layer, piece.slot, piece.reach)
    return (k, v) if piece.order is None else (k[piece.order], v[piece.order])


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
