"""Log-probabilities of many rows at once, as the native library and torch give them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from outrider.errors import NumericalError
from outrider.verify.logprobs import token_logprobs
from tests.arrays import floats, log_softmax, randn

pytestmark = pytest.mark.usefixtures("each_sampler")


@pytest.mark.parametrize("count", [0, 1, 5, 40])
def test_they_are_those_of_a_log_softmax(count: int) -> None:
    logits = randn(9, 33, seed=count) * 5
    taken = [(7 * i) % 33 for i in range(9)]
    expected = log_softmax(logits.astype(np.float64))
    for row, token, found in zip(expected, taken, token_logprobs(logits, taken, count), strict=True):
        best = np.argsort(-row, kind="stable")[:count].tolist()
        assert list(found) == list(dict.fromkeys([token, *best]))
        assert found == pytest.approx({i: float(row[i]) for i in found}, abs=1e-5)


def test_impossible_tokens_are_not_among_the_likeliest() -> None:
    logits = floats([[0.0, -math.inf, 0.0, -math.inf]])
    (found,) = token_logprobs(logits, [1], 3)
    assert found == {1: -math.inf, 0: pytest.approx(-math.log(2)), 2: pytest.approx(-math.log(2))}


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_row_that_is_no_distribution_is_refused(bad: float) -> None:
    logits = np.zeros((3, 8), np.float32)
    logits[1, 4] = bad
    with pytest.raises(NumericalError, match="logits after 1 tokens are not finite"):
        token_logprobs(logits, [0, 0, 0], 2)
