"""Measured costs instead of the assumption that scoring is free."""

from __future__ import annotations

import pytest

from outrider.errors import ConfigError
from outrider_lab import theory
from outrider_lab.cost import (
    DraftCost,
    LatencyCurve,
    best_measured_k,
    break_even_alpha,
    flat,
    measured_improvement,
)


def draft(c: float) -> DraftCost:
    return DraftCost(per_token=lambda batch: c)


def test_with_flat_costs_it_is_theorem_3_8() -> None:
    for alpha, k, c in ((0.5, 2, 0.1), (0.8, 7, 0.02), (0.3, 1, 0.5)):
        expected = float(theory.improvement(alpha, k, c))
        assert measured_improvement([alpha] * k, flat(), draft(c)) == pytest.approx(expected)
    assert best_measured_k([0.7] * 20, flat(), draft(0.1))[0] == theory.best_k(0.7, 0.1)


def test_a_curve_runs_through_its_points_and_goes_on_with_its_last_slope() -> None:
    curve = LatencyCurve({1: 10.0, 4: 10.0, 8: 14.0})
    assert [curve(n) for n in (1, 2, 4, 6, 8, 16)] == [10, 10, 10, 12, 14, 22]
    assert LatencyCurve({1: 3.0})(50) == 3
    with pytest.raises(ConfigError, match="latency curve"):
        LatencyCurve({0: 1.0})


def test_a_machine_that_pays_per_row_wants_shorter_drafts_and_large_batches_none() -> None:
    paying = LatencyCurve({1: 1.0, 2: 1.3, 64: 20.0})
    free = best_measured_k([0.8] * 12, flat(), draft(0.05))
    paid = best_measured_k([0.8] * 12, paying, draft(0.05))
    assert 0 < paid[0] < free[0]
    assert best_measured_k([0.8] * 12, paying, draft(0.05), batch=32)[0] <= paid[0]
    per_row = LatencyCurve({1: 1.0, 2: 2.0})  # a run bound by arithmetic: twice the rows, twice the time
    assert best_measured_k([0.9] * 12, per_row, draft(0.0), batch=8) == (0, 1.0)


def test_break_even_is_where_the_gain_is_nothing() -> None:
    assert break_even_alpha(1, flat(), draft(0.2)) == pytest.approx(0.2)
    curve = LatencyCurve({1: 1.0, 8: 1.6})
    alpha = break_even_alpha(4, curve, draft(0.05))
    assert alpha is not None
    assert measured_improvement([alpha] * 4, curve, draft(0.05)) == pytest.approx(1)
    assert break_even_alpha(3, LatencyCurve({1: 1.0, 2: 2.0}), draft(0.1)) is None
