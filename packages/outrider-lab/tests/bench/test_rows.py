"""What ``benchmarks.rows`` says that drafts could gain at most."""

from __future__ import annotations

import pytest

from benchmarks.rows import ALPHAS, ceiling
from outrider_lab import theory
from outrider_lab.cost import LatencyCurve


def test_rows_that_cost_nothing_leave_the_paper_s_formula() -> None:
    found = ceiling(LatencyCurve({1: 1.0, 8: 1.0}), 1, 0.0)
    assert {a: k for a, (k, _) in found["gains"].items()} == dict.fromkeys(ALPHAS, 7)
    for alpha, (k, gain) in found["gains"].items():
        assert gain == pytest.approx(float(theory.improvement(alpha, k)))
    assert found["break_even"] == pytest.approx(0.0, abs=1e-6)


def test_rows_that_cost_as_much_as_the_first_leave_nothing() -> None:
    found = ceiling(LatencyCurve({n: float(n) for n in (1, 2, 8)}), 1, 0.0)
    assert all(gain == pytest.approx(1.0) for _, gain in found["gains"].values())
    assert found["break_even"] is None


def test_rows_of_a_batch_are_those_of_all_its_requests() -> None:
    """Sixteen requests with a draft token each score 32 rows, where one alone scores 2."""
    curve = LatencyCurve({1: 1.0, 2: 1.0, 16: 2.0, 32: 4.0})
    alone, together = ceiling(curve, 1, 0.0), ceiling(curve, 16, 0.0)
    assert alone["break_even"] == pytest.approx(0.0, abs=1e-6)
    assert together["break_even"] is None
    assert together["gains"][0.6] == (0, 1.0)
