"""One error for each mistake, with the value and the remedy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from outrider import OutriderError, speculate
from outrider_lab.speculation import Normal, Point, judge
from tests.speculation.cases import Batched, chain

NORMAL = Normal(0, 1)


class Broken(Normal):
    def __init__(self, value: float) -> None:
        super().__init__(0, 1)
        self.value = value

    def log_density(self, value: Any) -> float:
        return self.value


ARGUMENTS: list[tuple[dict[str, Any], str]] = [
    ({"length": 0}, r"length=0 is not valid: use 1 or more"),
    ({"draft_length": -1}, r"draft_length=-1 is not valid"),
    ({"verifier": "lenient"}, r"verifier='lenient' is not valid: use one of matching, rejection, equality"),
    ({"pool": "cluster"}, r"pool='cluster' is not valid"),
    ({"f": 3}, r"f=3 is not valid"),
    ({"g": 3}, r"g=3 is not valid"),
]

LAWS: list[tuple[Any, Any, str]] = [
    ([0.5, 0.6], None, r"f at position 0: the probabilities sum to 1.1: divide them by their sum"),
    ([0.5, math.nan], None, r"the probability of value 1 is nan"),
    ([1.5, -0.5], None, r"the probability of value 1 is -0.5: use numbers from 0 to 1"),
    ([], None, r"returned no probabilities"),
    ("up", None, r"f at position 0 returned 'up' \(str\): return a vector"),
    (np.eye(2), None, r"f at position 0 returned"),
    (torch.distributions.Normal(0.0, 1.0), None, r"return a vector of probabilities, a Density"),
    ([0.5, 0.5], [0.5, 0.6], r"g at position 0: the probabilities sum to 1.1"),
    ([0.5, 0.5], [0.5, 0.25, 0.25], r"f gave 2 probabilities at position 0 and g gave 3"),
    ([0.5, 0.5], 7, r"g guessed 7 at position 0, where f gave 2 probabilities: use a whole number from 0 to 1"),
    ([0.5, 0.5], NORMAL, r"f gave probabilities at position 0 and g gave a density"),
    (NORMAL, 0.3, r"f gave a density at position 0 and g gave the value 0.3"),
    (NORMAL, [0.5, 0.5], r"g gave 2 probabilities, which it could never keep"),
    (Broken(math.nan), NORMAL, r"the log_density of f at position 0 is nan"),
    (NORMAL, Broken(math.inf), r"the log_density of g at position 0 is inf"),
    (NORMAL, Broken(-math.inf), r"g drew .* where its log_density is -inf"),
]


@pytest.mark.parametrize(("changed", "message"), ARGUMENTS)
def test_arguments(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(OutriderError, match=message):
        speculate(**{"f": chain, "g": None, "length": 3, **changed})


@pytest.mark.parametrize(("p", "q", "message"), LAWS)
def test_laws(p: Any, q: Any, message: str) -> None:
    with pytest.raises(OutriderError, match=message):
        speculate(Batched(lambda prefix: p), lambda prefix: q, 2, seed=1)


def test_a_density_that_is_not_normalised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge, "TRIES", 1000)
    with pytest.raises(OutriderError, match="not normalised"):
        speculate(Batched(lambda prefix: Broken(-30.0)), lambda prefix: NORMAL, 20, seed=1)


def test_matching_of_densities_needs_a_base() -> None:
    def run(p: Any, **options: Any) -> None:
        speculate(Batched(lambda prefix: p), lambda prefix: NORMAL, 3, seed=1, verifier="matching", **options)

    with pytest.raises(OutriderError, match="needs base"):
        run(NORMAL)
    with pytest.raises(OutriderError, match="too narrow for sd"):
        run(NORMAL, base=Normal(0, 1))
    with pytest.raises(OutriderError, match="has no log_bound"):
        run(stats.norm(0, 1), base=Normal(0, 3))
    with pytest.raises(OutriderError, match="let log_bound return its largest value"):
        run(Broken(5.0), base=Normal(0, 3))
    with pytest.raises(OutriderError, match="give a Density"):
        run(NORMAL, base=[0.5, 0.5])


def test_normal_checks_its_numbers() -> None:
    with pytest.raises(OutriderError, match="sd=0 is not valid"):
        Normal(0, 0)
    with pytest.raises(OutriderError, match="mean=nan is not valid"):
        Normal(math.nan, 1)


def test_a_coroutine_function_is_sent_elsewhere() -> None:
    async def f(prefix: Any) -> Any:
        return Point(1)

    with pytest.raises(OutriderError, match="await speculate_async"):
        speculate(f, None, 2)
