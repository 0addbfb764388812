"""Attention over the cache, arranged so that a row's result never depends on the rest of the batch.

A fused attention kernel picks its code by the shape of its arguments: another number of queries or keys, another
order of additions, other last bits. So every call here has one shape per block of keys:

* queries go in tiles of ``TILE`` rows, stacked along the batch dimension; the last tile is padded;
* the query heads that share a key head are folded into the rows of their tile, which reads each key once;
* keys come in blocks counted from position 0. The kernel itself works block by block, and a block that is wholly
  masked adds exact zeros, so a row gives the same bits at any padded length;
* keys come in the order of their positions, as the order of additions is that of the keys. A tree is therefore
  taken apart into chains (``tree_tiles``), and each reads the cache in its own order, all in one call.

The remaining assumption (a row's place in its tile) is tested by ``tests/models/test_invariance.py``, and by
``outrider doctor`` on each machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from outrider.models.batch import Span
from outrider_torch.kernels.attention.capped import capped_attention
from outrider_torch.kernels.attention.tree_tiles import KEY_BLOCK, TILE, chains, key_order, padded, tree_tiles

Visible = Callable[[Tensor, Tensor], Tensor]
"""bool [n, keys] of int64 [n, 1] and [1, keys]: whether a row at a position may attend to another position."""


@dataclass(frozen=True)
class AttentionPiece:
    """Rows of one span that attend over the same number of keys: a chain, or the tiles of a tree."""

    slot: int
    rows: slice | Tensor  # packed rows; for a tree int64 [tiles * tile], padded
    keys: int  # whole blocks
    mask: Tensor  # float [tiles, 1, tile * group, keys]: 0 where a row attends, else -inf
    order: Tensor | None  # int64 [tiles, keys], for a tree: cache rows by position; None: the cache is in order
    reach: int  # cache rows to read
    packed: Sequence[int]  # ``rows`` one by one; -1 is padding
    seen: Sequence[int]  # keys that each tile attends to, from the first on


@dataclass(frozen=True)
class AttentionPlan:
    """The pieces and masks of one forward pass; built once and used by every layer."""

    spans: tuple[tuple[Span, int], ...]  # each span with its first packed row
    pieces: tuple[AttentionPiece, ...]
    inverse: Tensor | None  # int64 [T], the index of each row in the pieces' results; None: packing order


def plan(
    spans: Sequence[Span],
    *,
    group: int,
    kv_heads: int,
    window: int | None,
    rows: int,
    dtype: torch.dtype,
    device: torch.device,
    visible: Visible | None = None,
    chunked: bool = False,
) -> AttentionPlan:
    """Cut spans into pieces and draw their masks.

    Args:
        group: query heads per key head.
        kv_heads: key heads; a call for one key head gets at least two tiles, as the kernel hands a lone tile to a
            matrix library that may split it among threads and add in another order.
        window: the most positions that a row attends to, itself included.
        visible: a further condition for a position to attend to another; None: no condition.
        chunked: the window begins at the last position that is a multiple of it.
        rows: rows of the forward pass; more than the spans' only for a lone chain, to fill its tile.
    """
    placed: list[tuple[Span, int]] = []
    pieces: list[AttentionPiece] = []
    packed: list[int] = []  # the packed row of each row of the pieces' results; -1 is padding
    least, row = 2 if kv_heads == 1 else 1, 0
    for span in spans:
        placed.append((span, row))
        cut = _chain_pieces if span.mask is None else _tree_pieces
        for cut_rows, keys, at, tile, order in cut(span, least, device):
            own = [row + r if r >= 0 else -1 for r in cut_rows]
            mask = _fold_mask(_visible(at, keys, window, visible, chunked), group, tile, least, dtype)
            seen = [int(at[min(end, len(at)) - 1]) + 1 if end - tile < len(at) else 1 for end in _ends(mask, group)]
            if order is None:
                pieces.append(AttentionPiece(span.slot, slice(own[0], own[-1] + 1), keys, mask, None, keys, own, seen))
            else:
                reach = max(keys, span.start + span.count)
                at_rows = torch.tensor(own, device=device).clamp_min(row)
                pieces.append(AttentionPiece(span.slot, at_rows, keys, mask, order, reach, own, seen))
            packed += own
        row += span.count
    if rows > row:
        last = pieces[-1].rows
        assert isinstance(last, slice)
        pieces[-1] = replace(pieces[-1], rows=slice(last.start, rows))
    if all(span.mask is None for span in spans):
        return AttentionPlan(tuple(placed), tuple(pieces), None)
    places = {r: i for i, r in enumerate(packed)}
    return AttentionPlan(tuple(placed), tuple(pieces), torch.tensor([places[r] for r in range(row)], device=device))


_Cut = Iterator[tuple[Sequence[int], int, Tensor, int, Tensor | None]]
"""Rows of the span (-1: padding), keys, positions of the rows, rows of a tile, and the order of the keys."""


def _chain_pieces(span: Span, least: int, device: torch.device) -> _Cut:
    done = 0
    while done < span.count:
        first = span.start + done
        keys = padded(first + 1)  # a row needs no more keys than its own position
        count = min(span.count - done, keys - first)
        at = torch.arange(first, first + count, device=device)
        yield range(done, done + count), keys, at, TILE, None
        done += count


def _tree_pieces(span: Span, least: int, device: torch.device) -> _Cut:
    paths = list(chains(span))
    assert span.mask is not None
    causal = span.count - len(span.mask)
    fresh, path = paths[0]
    if list(path) == list(range(len(path))):  # its rows are in order in the cache, and need no gather
        causal += len(fresh)
        paths = paths[1:]
    if causal:
        yield from _chain_pieces(replace(span, count=causal, mask=None), least, device)
    for keys, size, tiles in tree_tiles(span, paths):
        tiles += tiles[-1:] * (least - len(tiles))
        rows = [row for tile in tiles for row in (*tile.rows, *[-1] * (size - len(tile.rows)))]
        at = torch.tensor([tile.first + i for tile in tiles for i in range(size)], device=device)
        yield rows, keys, at, size, key_order(span, tiles, keys, device)


def _visible(at: Tensor, keys: int, window: int | None, also: Visible | None, chunked: bool) -> Tensor:
    """bool [rows, keys]: the positions that rows at positions ``at`` may attend to."""
    columns, at = torch.arange(keys, device=at.device)[None], at[:, None]
    visible = columns <= at
    if also is not None:
        visible = visible & also(at, columns)
    if window is None:
        return visible
    return visible & (columns >= at // window * window if chunked else columns > at - window)


def _ends(mask: Tensor, group: int) -> range:
    """The end of each tile of a folded mask, in rows."""
    tile = mask.shape[2] // group
    return range(tile, mask.shape[0] * tile + 1, tile)


def _fold_mask(visible: Tensor, group: int, tile: int, least_tiles: int, dtype: torch.dtype) -> Tensor:
    """bool [count, keys] -> additive [tiles, 1, tile * group, keys]; padded rows attend to everything."""
    count, keys = visible.shape
    tiles = max(-(-count // tile), least_tiles)
    mask = torch.zeros(tiles * tile, keys, dtype=dtype, device=visible.device)
    mask[:count].masked_fill_(~visible, float("-inf"))
    return mask.view(tiles, 1, tile, 1, keys).expand(-1, -1, -1, group, -1).reshape(tiles, 1, tile * group, keys)


class Keys(Protocol):
    """A source of keys and values: a cache, or a sequence's attachment."""

    def read(self, layer: int, slot: int, rows: int) -> tuple[Tensor, Tensor]: ...


def attend(
    q: Tensor,
    cache: Keys,
    layer: int,
    plan: AttentionPlan,
    scale: float | None = None,
    cap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attention of q: [T, heads, head_dim] over each piece's cache rows -> [T, heads * head_dim].

    Where keys begin with the values, whole keys are attended to: a head's first numbers are those of its values.

    Args:
        scale: of scores; None: 1 / sqrt(head_dim).
        cap: scores become cap * tanh(score / cap).
        sinks: [heads], a score of each head that takes part in the softmax and has no value; not with ``cap``.
    """
    outs = [_attend(q[p.rows], *keys_of(cache, layer, p), p.mask, scale, cap, sinks) for p in plan.pieces]
    out = outs[0] if len(outs) == 1 else torch.cat(outs)
    return out if plan.inverse is None else out[plan.inverse]


def keys_of(cache: Keys, layer: int, piece: AttentionPiece) -> tuple[Tensor, Tensor]:
    """Keys and values [tiles or 1, kv_heads, keys, head_dim] in the order of their positions."""
    k, v = cache.read(layer, piece.slot, piece.reach)
    v = v if v.shape == k.shape else k
    if piece.order is None:
        rows, kv_heads, d = k.shape
        shape, strides = (1, kv_heads, rows, d), (0, d, kv_heads * d, 1)  # transposed in one step: a frequent call
        return k.as_strided(shape, strides), v.as_strided(shape, strides)
    shape, order = (*piece.order.shape, *k.shape[1:]), piece.order.flatten()
    k, v = k.index_select(0, order).view(shape), v.index_select(0, order).view(shape)
    return k.transpose(1, 2), v.transpose(1, 2)


def _attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float | None, cap: float | None, sinks: Tensor | None
) -> Tensor:
    """q: [n, heads, d]; k, v: [tiles or 1, kv_heads, keys, d]; mask: as in ``AttentionPiece`` -> [n, heads * d]."""
    n, heads, d = q.shape
    kv_heads, tiles = k.shape[1], mask.shape[0]
    tile = mask.shape[2] * kv_heads // heads
    if n < tiles * tile:
        q = F.pad(q, (0, 0, 0, 0, 0, tiles * tile - n))
    q = q.view(tiles, tile, kv_heads, -1, d).transpose(1, 2).reshape(tiles, kv_heads, -1, d)
    k, v = k.expand(tiles, -1, -1, -1), v.expand(tiles, -1, -1, -1)
    if sinks is not None:
        assert cap is None
        k, v, mask = _with_sinks(k, v, mask, sinks.to(q.dtype).view(kv_heads, 1, -1))
    if cap is None:
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
    else:
        out = capped_attention(q, k, v, mask, d**-0.5 if scale is None else scale, cap)
    return out.view(tiles, kv_heads, tile, -1).transpose(1, 2).reshape(tiles * tile, heads * d)[:n]


def _with_sinks(k: Tensor, v: Tensor, mask: Tensor, sinks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Append a block of zero keys, the first with the score of its head's sink; sinks: [kv_heads, 1, group]."""
    tiles, kv_heads, rows = k.shape[0], k.shape[1], mask.shape[2]
    more = torch.full((tiles, kv_heads, rows, KEY_BLOCK), float("-inf"), dtype=mask.dtype, device=mask.device)
    more[..., 0] = sinks.expand(-1, rows // sinks.shape[2], -1).reshape(kv_heads, rows)
    k, v = (F.pad(x, (0, 0, 0, KEY_BLOCK)) for x in (k, v))
    return k, v, torch.cat([mask.expand(-1, kv_heads, -1, -1), more], dim=-1)
