"""How many keys an attention call is given: whole blocks of 512, and shorter last blocks where those add up alike.

The fused kernel works through 512 keys at a time, so that further, wholly masked blocks change no bit. A last block of
another length is another matrix product, and the library may add it up in another order: on one AVX-512 machine it
keeps the order at every multiple of 64 but 256 and 320. So each machine is asked, once.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

KEY_BLOCK = 512
_CANDIDATES = (64, 128, 192, 256, 320, 384, 448)


def padded(rows: int, short: tuple[int, ...]) -> int:
    """The number of keys to give a call that needs ``rows``: the next whole block, or one of ``short`` before it."""
    whole, rest = divmod(rows, KEY_BLOCK)
    if rest == 0:
        return rows
    return whole * KEY_BLOCK + next((n for n in short if n >= rest), KEY_BLOCK)


def short_blocks(tile: int, kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device) -> tuple[int, ...]:
    """The lengths below 512 at which a last block gives the same bits as a whole one: ascending, perhaps none.

    ``tile``: query rows of each key head in a call.
    """
    if device.type != "cpu":
        return ()
    return _probed(tile, kv_heads, head_dim, dtype, torch.get_num_threads())


@cache
def _probed(tile: int, kv_heads: int, head_dim: int, dtype: torch.dtype, threads: int) -> tuple[int, ...]:
    return tuple(n for n in _CANDIDATES if all(_alike(tile, kv_heads, head_dim, dtype, n, seed) for seed in range(4)))


def _alike(tile: int, kv_heads: int, head_dim: int, dtype: torch.dtype, keys: int, seed: int) -> bool:
    """Whether ``keys`` and 512 keys give the same bits, for masks that end anywhere in the last block."""
    generator = torch.Generator().manual_seed(seed)
    k, v = cancelling(kv_heads, head_dim, KEY_BLOCK, dtype, generator, mixed=keys)
    q = torch.randn(1, kv_heads, tile, head_dim, generator=generator).to(dtype)
    if kv_heads == 1:  # as attention does: a lone tile is computed in another way
        q, k, v = (t.expand(2, -1, -1, -1) for t in (q, k, v))
    for visible in (1, keys // 2 - 3, keys - 65, keys - 1, keys):
        mask = torch.zeros(1, 1, tile, KEY_BLOCK, dtype=dtype)
        mask[..., max(1, visible) :] = float("-inf")
        whole = attention(q, k, v, mask)
        short = attention(q, k[:, :, :keys], v[:, :, :keys], mask[..., :keys])
        if not all(torch.equal(a, b) for a, b in zip(whole, short, strict=True)):
            return False
    return True


def cancelling(
    kv_heads: int, head_dim: int, keys: int, dtype: torch.dtype, generator: torch.Generator, mixed: int | None = None
) -> tuple[Tensor, Tensor]:
    """Keys and values [1, kv_heads, keys, head_dim] to probe a kernel with: values come in pairs that cancel.

    What is left of their weighted sum is rounding error, which is another one as soon as the order of additions is;
    so a few calls tell. The first ``mixed`` keys (None: all) come in random order.
    """
    mixed = keys if mixed is None else mixed
    half = torch.randn(2, 1, kv_heads, keys // 2, head_dim, generator=generator)
    k = half[0].repeat_interleave(2, dim=2)
    v = torch.stack([half[1], -half[1]], dim=3).flatten(2, 3)
    order = torch.cat([torch.randperm(mixed, generator=generator), torch.arange(mixed, keys)])
    return k[:, :, order].to(dtype), v[:, :, order].to(dtype)


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """What ``scaled_dot_product_attention`` runs on a CPU, with the logarithm of each row's sum of weights."""
    out, log_sum = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, attn_mask=mask)
    return out, log_sum
