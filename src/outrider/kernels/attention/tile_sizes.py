"""How many rows of a sequence attention takes as one tile, where wider tiles give the same bits as the narrowest.

A tile of 64 rows costs a third of sixteen tiles of 4 (bfloat16, AMX), but a wider tile is another matrix product, which
the library may add up in another order. So each machine is asked, once.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from outrider.kernels.attention.key_blocks import KEY_BLOCK, attention, cancelling

TILE = 4  # fewer and the kernel takes another path; more and plain decoding pays for padding
_WIDER = (8, 16, 32, 64)


def fitting(rows: int, sizes: tuple[int, ...]) -> int:
    """The narrowest of ``sizes`` that holds ``rows``, else the widest."""
    return next((size for size in sizes if size >= rows), sizes[-1])


def tile_sizes(
    group: int, kv_heads: int, head_dim: int, dtype: torch.dtype, short: tuple[int, ...], device: torch.device
) -> tuple[int, ...]:
    """``TILE`` and the wider tiles in which every row gives the same bits, ascending.

    Args:
        group: query heads per key head.
        short: lengths that a last block of keys may have (``kernels.attention.key_blocks.short_blocks``).
    """
    if device.type != "cpu":
        return (TILE,)
    return _probed(group, kv_heads, head_dim, dtype, short, torch.get_num_threads())


@cache
def _probed(
    group: int, kv_heads: int, head_dim: int, dtype: torch.dtype, short: tuple[int, ...], threads: int
) -> tuple[int, ...]:
    lengths = (*short, KEY_BLOCK, 2 * KEY_BLOCK)
    alike = [n for n in _WIDER if all(_alike(n, group, kv_heads, head_dim, dtype, keys) for keys in lengths)]
    return (TILE, *alike)


def _alike(size: int, group: int, kv_heads: int, head_dim: int, dtype: torch.dtype, keys: int) -> bool:
    """Whether tiles of ``size`` and of ``TILE`` rows agree, at the beginning and at the end of ``keys`` keys."""
    generator = torch.Generator().manual_seed(size)
    k, v = cancelling(kv_heads, head_dim, keys, dtype, generator)
    rows = size if kv_heads > 1 else 2 * size  # as attention does: a lone tile is computed in another way
    q = torch.randn(rows, kv_heads, group, head_dim, generator=generator).to(dtype)
    for last in {min(rows, keys), keys}:
        visible = torch.arange(keys) <= torch.arange(last - rows, last).clamp_min(0)[:, None]
        mask = torch.zeros(rows, keys, dtype=dtype).masked_fill_(~visible, float("-inf"))
        wide, narrow = (_in_tiles(q, k, v, mask, tile) for tile in (size, TILE))
        if not all(torch.equal(a, b) for a, b in zip(wide, narrow, strict=True)):
            return False
    return True


def _in_tiles(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, size: int) -> list[Tensor]:
    """Attention of q: [rows, kv_heads, group, d] in tiles of ``size`` rows; and logarithms of the sums of weights."""
    rows, kv_heads, group, d = q.shape
    tiles = q.view(-1, size, kv_heads, group, d).transpose(1, 2).reshape(-1, kv_heads, size * group, d)
    masks = mask.view(-1, 1, size, 1, mask.shape[1]).expand(-1, -1, -1, group, -1)
    k, v = (t.expand(len(tiles), -1, -1, -1) for t in (k, v))
    out, log_sum = attention(tiles, k, v, masks.reshape(len(tiles), 1, size * group, -1))
    parts = (out, log_sum.to(torch.float32).reshape(*out.shape[:-1], 1))
    return [part.view(-1, kv_heads, size, group, part.shape[-1]).transpose(1, 2).reshape(rows, -1) for part in parts]
