"""Every processor gets a linear layer for every dtype."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from outrider.kernels.linear import linear
from outrider.kernels.linear.linear import PlainLinear, has_packed_kernels, make_linear


@pytest.fixture
def no_onednn_bf16(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A processor of AVX2 alone, for which oneDNN packs no bfloat16 weights."""
    monkeypatch.setattr(linear, "has_onednn_bf16", lambda: False)
    monkeypatch.setattr(linear, "supports_brgemm", lambda _weight: False)
    has_packed_kernels.cache_clear()
    yield
    has_packed_kernels.cache_clear()


@pytest.mark.usefixtures("no_onednn_bf16")
@pytest.mark.parametrize("biased", [False, True])
def test_bfloat16_works_where_onednn_refuses_it(biased: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(96, 64, generator=generator).bfloat16()
    bias = torch.randn(96, generator=generator).bfloat16() if biased else None
    x = torch.randn(40, 64, generator=generator).bfloat16()
    layer = make_linear(weight, bias)
    assert isinstance(layer, PlainLinear)
    exact = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    whole = layer(x)
    assert torch.allclose(whole.double(), exact, rtol=2**-7, atol=2**-4)
    assert all(torch.equal(layer(x[:n]), whole[:n]) for n in (1, 2, 17, 39))


@pytest.mark.usefixtures("no_onednn_bf16")
def test_other_dtypes_keep_their_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = has_packed_kernels(torch.bfloat16), has_packed_kernels(torch.float32)
    monkeypatch.setattr(linear, "has_onednn_bf16", lambda: True)
    has_packed_kernels.cache_clear()
    assert refused == (False, has_packed_kernels(torch.float32))
