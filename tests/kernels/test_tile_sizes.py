"""Wider tiles are used where, and only where, they give the same bits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from outrider.kernels.attention import tile_sizes as module
from outrider.kernels.attention.key_blocks import attention
from outrider.kernels.attention.tile_sizes import TILE, fitting, tile_sizes
from outrider.kernels.norm import RMSNorm

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def forget() -> None:
    module._probed.cache_clear()


def test_the_narrowest_that_holds_the_rows() -> None:
    assert [fitting(n, (4, 8, 64)) for n in (1, 4, 5, 8, 9, 64, 65, 500)] == [4, 4, 8, 8, 64, 64, 64, 64]


def test_a_size_that_adds_up_in_another_order_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def other(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        if q.shape[2] != 16 * 2:
            return attention(q, k, v, mask)
        return attention(q, k.flip(2), v.flip(2), mask.flip(-1))  # the same sums, the other way round

    before = tile_sizes(2, 3, 16, torch.float32, (), CPU)
    module._probed.cache_clear()
    monkeypatch.setattr(module, "attention", other)
    assert tile_sizes(2, 3, 16, torch.float32, (), CPU) == tuple(n for n in before if n != 16)
    assert TILE in before


def test_elsewhere_than_on_a_cpu_nothing_is_asked() -> None:
    assert tile_sizes(2, 3, 16, torch.float32, (), torch.device("meta")) == (TILE,)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e3])
def test_the_norm_is_what_its_formula_says(dtype: torch.dtype, scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(96, generator=generator).to(dtype)
    x = (scale * torch.randn(5, 2, 96, generator=generator)).to(dtype)
    wide = x.double()
    wanted = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    found = RMSNorm(weight, 1e-5)(x)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5 if dtype == torch.float32 else 8e-3, atol=1e-6)
