"""Attention with capped scores, on torch: as the formula has it, over several blocks of keys."""

from __future__ import annotations

import torch

from outrider_torch.kernels.attention.capped import capped_attention


def test_blocks_of_keys_are_merged_as_if_there_were_one() -> None:
    generator = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(2, 3, n, 8, generator=generator) for n in (4, 1536, 1536))
    mask = torch.zeros(2, 1, 4, 1536)
    mask[0, :, :, 700:] = float("-inf")  # a whole block is not seen, and part of one
    mask[1, :, :, :600] = float("-inf")  # as behind a window
    scores = torch.tanh(q @ k.mT * 0.7 / 2.0) * 2.0 + mask
    wanted = scores.softmax(dim=-1) @ v
    torch.testing.assert_close(capped_attention(q, k, v, mask, 0.7, 2.0), wanted, atol=1e-5, rtol=1e-5)
