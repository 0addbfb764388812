"""Calls beside the paper's formulas, and how a report looks."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from outrider import speculate
from outrider_lab import theory
from tests.speculation.cases import Batched

P, Q = np.array([0.5, 0.3, 0.15, 0.05]), np.array([0.35, 0.35, 0.2, 0.1])


@pytest.mark.parametrize(
    ("verifier", "law"), [("rejection", theory.acceptance), ("matching", theory.coupled_acceptance)]
)
def test_rounds_are_those_of_the_formula(verifier: Any, law: Any) -> None:
    """The same laws at every position: acceptances are independent and equally likely, as the paper supposes."""
    alpha, k, values = float(law(P, Q)), 3, 1500
    report = speculate(
        Batched(lambda prefix: P), lambda prefix: Q, values, seed=4, verifier=verifier, draft_length=k
    ).report
    assert report.alpha == pytest.approx(alpha, abs=3 * (alpha * (1 - alpha) / report.tested) ** 0.5)
    expected = float(theory.expected_tokens(alpha, k))
    lengths = np.arange(1, k + 2)
    chances = np.append(alpha ** (lengths[:-1] - 1) * (1 - alpha), alpha**k)
    spread = float((chances @ (lengths - expected) ** 2) ** 0.5)
    assert report.values_per_round == pytest.approx(expected, abs=3 * spread / report.rounds**0.5)
    assert report.operations == pytest.approx(float(theory.operations(alpha, k)), rel=0.05)
    assert report.expected_values_per_round == pytest.approx(expected, rel=0.05)


def test_a_pool_has_the_same_rounds() -> None:
    """Rounds count what had to wait for what: the same in a batch and in a pool, however the calls came back."""
    options: dict[str, Any] = {"seed": 4, "draft_length": 3}
    batch = speculate(Batched(lambda prefix: P), lambda prefix: Q, 200, **options).report
    pool = speculate(lambda prefix: P, lambda prefix: Q, 200, **options).report
    assert pool.rounds == batch.rounds
    assert pool.f_calls - pool.f_wasted == batch.f_calls - batch.f_wasted == 200
    assert pool.operations == pytest.approx(pool.expected_operations, rel=0.03)
    assert batch.operations == pytest.approx(batch.expected_operations, rel=0.1)
    assert pool.operations > batch.operations


def test_a_report_is_shown_and_stored() -> None:
    run = speculate(Batched(lambda prefix: P), lambda prefix: Q, 50, seed=4)
    kept = json.loads(run.report.to_json())
    assert kept["values"] == 50
    assert kept["alpha"] == run.report.alpha
    assert {"rounds", "f_calls", "f_wasted", "g_calls", "wall_s", "best_draft_length", "expected_improvement"} <= set(
        kept
    )
    shown = str(run.report)
    assert f"50 values in {kept['rounds']} rounds of f, K = 4" in shown
    assert len(shown.splitlines()) == 5
    assert list(run) == run.values
    assert len(run) == 50


def test_plain_sampling_has_no_acceptance() -> None:
    report = speculate(Batched(lambda prefix: P), None, 5, seed=4, draft_length=0).report
    assert report.alpha is None
    assert "no guess was tested" in str(report)
    assert (report.rounds, report.f_calls, report.g_calls) == (5, 5, 0)
    json.loads(report.to_json())
