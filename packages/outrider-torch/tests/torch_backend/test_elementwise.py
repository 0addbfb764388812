"""An activation of a row has the same bits whatever the other rows are, also where rows are no whole vectors."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from outrider_torch.kernels.serial import elementwise
from tests import small_models


@pytest.mark.parametrize("width", [5, 33, 40, 64, 72, 112, 1000])
@pytest.mark.parametrize("function", [F.silu, F.gelu], ids=["silu", "gelu"])
@pytest.mark.parametrize("gated", [False, True])
def test_rows_do_not_depend_on_each_other(function: Callable[[Tensor], Tensor], width: int, gated: bool) -> None:
    x = torch.randn(100, 2 * width if gated else width, generator=torch.Generator().manual_seed(0))[:, :width]
    whole = elementwise(function, x)
    torch.testing.assert_close(whole, function(x))
    for count in (1, 3, 5, 33, 53):
        assert small_models.identical(elementwise(function, x[:count]), whole[:count]), count
        assert small_models.identical(elementwise(function, x[count:].contiguous()), whole[count:]), count
