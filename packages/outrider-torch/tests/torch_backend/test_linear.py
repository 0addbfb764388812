"""A row's bits do not depend on the other rows of a linear layer of torch."""

from __future__ import annotations

import pytest
import torch

from outrider_torch.kernels.linear import TorchLinear
from tests import small_models


@pytest.mark.parametrize("in_features", [100, 576])
def test_torch_linear_layers(in_features: int) -> None:
    """The layer for machines without the native library keeps the promise too."""
    generator = torch.Generator().manual_seed(in_features)
    layer = TorchLinear(torch.randn(192, in_features, generator=generator), None)
    x = torch.randn(33, in_features, generator=generator)
    whole = layer(x)
    for n in range(1, 33):
        assert small_models.identical(layer(x[-n:]), whole[-n:])
