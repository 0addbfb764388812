"""NaN in rows of the cache, with the torch backend, which multiplies masked rows by zero."""

from __future__ import annotations

import pytest

from tests.nan_models import check_nan_of_a_refused_draft


@pytest.mark.parametrize("prompt", [8, 511])
@pytest.mark.parametrize("at", [0, 1])
def test_nan_that_a_refused_draft_leaves_behind(prompt: int, at: int) -> None:
    check_nan_of_a_refused_draft("torch", prompt, at)
