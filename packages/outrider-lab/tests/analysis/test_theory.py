"""The formulas against the papers' own numbers, and against simulation and enumeration."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from outrider.errors import ConfigError
from outrider_lab import theory

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("alpha", "k", "operations", "speed"),
    [(0.6, 2, 1.53, 1.96), (0.7, 3, 1.58, 2.53), (0.8, 2, 1.23, 2.44),
     (0.8, 5, 1.63, 3.69), (0.9, 2, 1.11, 2.71), (0.9, 10, 1.60, 6.86)],
)  # fmt: skip
def test_table_1_of_the_2023_paper(alpha: float, k: int, operations: float, speed: float) -> None:
    assert round(float(theory.operations(alpha, k)), 2) == operations
    assert round(float(theory.improvement(alpha, k)), 2) == speed


TABLE_4 = [
    (7, 0.75, 0.02, 3.2), (7, 0.8, 0.04, 3.3), (7, 0.82, 0.11, 2.5), (7, 0.62, 0.02, 2.3),
    (5, 0.68, 0.04, 2.4), (3, 0.71, 0.11, 2.0), (5, 0.65, 0.02, 2.4), (5, 0.73, 0.04, 2.6),
    (3, 0.74, 0.11, 2.0), (5, 0.53, 0.02, 1.9), (3, 0.55, 0.04, 1.8), (3, 0.56, 0.11, 1.6),
]  # fmt: skip


@pytest.mark.parametrize(("k", "alpha", "c", "expected"), TABLE_4)
def test_table_4_s_expectations(k: int, alpha: float, c: float, expected: float) -> None:
    # The printed α and c have two digits and the printed expectation one: values within rounding must give it.
    low, high = theory.improvement(np.array([alpha - 0.005, alpha + 0.005]), k, np.array([c + 0.005, c - 0.005]))
    assert low - 0.05 <= expected <= high + 0.05


def test_expected_tokens_is_the_mean_of_a_capped_geometric_variable() -> None:
    for alpha, k in itertools.product((0.0, 0.3, 0.8, 1.0), (0, 1, 4, 9)):
        runs = np.minimum.accumulate(RNG.random((40_000, max(k, 1))) < alpha, axis=1)[:, :k].sum(axis=1) + 1
        assert theory.expected_tokens(alpha, k) == pytest.approx(runs.mean(), abs=0.05)
        assert theory.expected_accepted(alpha, k) == pytest.approx(sum(alpha**i for i in range(1, k + 1)))


def test_expected_tokens_near_one_keeps_its_digits() -> None:
    assert theory.expected_tokens(1 - 1e-12, 9) == pytest.approx(10, rel=1e-10)
    assert theory.expected_tokens(1.0, 9) == 10


def test_figure_2_rises_with_alpha_and_k() -> None:
    alpha = np.linspace(0, 1, 101)
    curves = np.array([theory.expected_tokens(alpha, k) for k in (1, 3, 5, 7, 10)])
    assert (np.diff(curves, axis=1) > 0).all()
    assert (np.diff(curves, axis=0) >= 0).all()
    assert curves[:, -1].tolist() == [2, 4, 6, 8, 11]  # where figure 2's curves end
    assert (curves[:, 0] == 1).all()


def test_figure_3_more_draft_tokens_for_a_better_or_cheaper_draft() -> None:
    alpha = np.linspace(0.05, 0.95, 91)
    best = np.array([theory.best_k(alpha, c) for c in (0.01, 0.02, 0.05, 0.1)])
    assert (np.diff(best, axis=1) >= 0).all()
    assert (np.diff(best, axis=0) <= 0).all()
    assert (best > 0).tolist() == theory.pays(alpha, np.array([[0.01], [0.02], [0.05], [0.1]])).tolist()


def test_figure_4_speed_and_operations() -> None:
    alpha = np.linspace(0.01, 0.99, 99)
    for k in (3, 5, 7, 10):
        assert (np.diff(theory.improvement(alpha, k)) > 0).all()
        assert (np.diff(theory.operations(alpha, k)) < 0).all()
    assert theory.operations(1.0, 7) == pytest.approx(1)  # nothing is wasted
    assert theory.operations(0.0, 7) == pytest.approx(8)  # everything is


@pytest.mark.parametrize(
    ("alpha", "c", "k"),
    [(0.5, 0.1, 2), (0.7, 0.1, 4), (0.85, 0.1, 7), (0.5, 0.02, 4), (0.7, 0.02, 8), (0.85, 0.02, 14)],
)
def test_optimum_k(alpha: float, c: float, k: int) -> None:
    """Beside a search that sums the geometric series term by term."""
    gain = [math.fsum(alpha**i for i in range(n + 1)) / (n * c + 1) for n in range(60)]
    assert theory.best_k(alpha, c) == k == max(range(60), key=gain.__getitem__)


def test_a_free_draft_wants_as_many_tokens_as_it_may_have() -> None:
    assert theory.best_k(0.5, 0.0, limit=9) == 9


def test_corollary_3_9() -> None:
    alpha, c = RNG.random(200), RNG.random(200)
    best = theory.improvement(alpha, theory.best_k(alpha, c), c)
    pays = theory.pays(alpha, c)
    assert (best[pays] >= theory.guaranteed_gain(alpha, c)[pays] * (1 - 1e-12)).all()
    assert (theory.guaranteed_gain(alpha, c)[pays] > 1).all()
    assert best[~pays] == pytest.approx(1)


def test_the_oracle_bounds_every_fixed_k() -> None:
    alpha = np.linspace(0, 0.95, 20)
    for c in (0.0, 0.02, 0.1):
        fixed = theory.improvement(alpha, theory.best_k(alpha, c), c)
        gain = theory.oracle_improvement(alpha, c) / fixed
        assert (gain >= 1 - 1e-9).all()
        assert gain.max() < 1.65  # "up to ~60% higher" (section 3.5)
    assert theory.oracle_tokens(0.75) == 4
    assert theory.oracle_tokens(1.0) == math.inf


def _rows(n: int, vocab: int = 6) -> np.ndarray:
    return RNG.dirichlet(np.full(vocab, 0.5), size=n)


def test_divergence_is_total_variation_and_one_minus_acceptance() -> None:
    p, q = _rows(50), _rows(50)
    assert theory.d_lk(p, q) == pytest.approx(np.abs(p - q).sum(axis=-1) / 2)
    assert theory.acceptance(p, q) == pytest.approx(1 - theory.d_lk(p, q))
    assert theory.d_lk(p, q) == pytest.approx(theory.d_lk(q, p))
    assert theory.d_lk(p, p) == pytest.approx(np.zeros(50))
    assert theory.acceptance([1, 0], [0, 1]) == 0


def test_lenience_is_what_its_accept_rule_accepts() -> None:
    p, q = _rows(1)[0], _rows(1)[0]
    for lenience in (1.0, 0.5, 0.1):
        accept = np.minimum(1, p / (lenience * q))
        assert theory.lenient_acceptance(p, q, lenience) == pytest.approx((q * accept).sum())
    assert theory.lenient_acceptance(p, q, 1.0) == pytest.approx(theory.acceptance(p, q))


def test_coupled_draws_agree_as_often_as_simulated() -> None:
    p, q = _rows(4), _rows(4)
    q[0], p[1, 0], q[2, 1] = p[0], 0, 0
    p, q = p / p.sum(axis=-1, keepdims=True), q / q.sum(axis=-1, keepdims=True)
    noise = RNG.gumbel(size=(60_000, 1, 6))
    with np.errstate(divide="ignore"):
        same = (np.log(p) + noise).argmax(-1) == (np.log(q) + noise).argmax(-1)
    found = theory.coupled_acceptance(p, q)
    assert found == pytest.approx(same.mean(axis=0), abs=0.01)
    assert found[0] == pytest.approx(1)
    assert (found <= theory.acceptance(p, q) + 1e-12).all()


def test_a_tree_that_is_a_chain_is_a_chain() -> None:
    assert theory.tree_tokens((-1, 0, 1), [0.6]) == pytest.approx(float(theory.expected_tokens(0.6, 3)))
    assert theory.chain_tokens([0.6] * 3) == pytest.approx(float(theory.expected_tokens(0.6, 3)))


def test_tree_tokens_by_hand() -> None:
    #  root ── 0 ── 2      worth 0.6, 0.6 * 0.6
    #      └── 1 ── 3      worth 0.2, 0.2 * 0.6
    assert theory.tree_tokens((-1, -1, 0, 1), [0.6, 0.2]) == pytest.approx(1 + 0.6 + 0.2 + 0.36 + 0.12)


def test_best_tree_beats_every_other_small_tree() -> None:
    rates = [0.5, 0.3, 0.1]
    for n in range(1, 6):
        trees = itertools.product(*(range(-1, i) for i in range(n)))
        assert theory.tree_tokens(theory.best_tree(rates, n), rates) == pytest.approx(
            max(theory.tree_tokens(parents, rates) for parents in trees)
        )
    assert max_depth(theory.best_tree([0.9, 0.05], 20, depth=3)) == 3


def max_depth(parents: tuple[int, ...]) -> int:
    depth: list[int] = []
    for parent in parents:
        depth.append(1 if parent < 0 else depth[parent] + 1)
    return max(depth)


@pytest.mark.parametrize("bad", [-0.1, 1.1, math.nan])
def test_impossible_values_are_refused(bad: float) -> None:
    with pytest.raises(ConfigError, match="alpha"):
        theory.expected_tokens(bad, 3)
    with pytest.raises(ConfigError, match="lenience"):
        theory.lenient_acceptance([1.0], [1.0], bad if bad != 1.1 else 0.0)
    with pytest.raises(ConfigError, match="k="):
        theory.expected_tokens(0.5, -1)
    with pytest.raises(ConfigError, match="c="):
        theory.improvement(0.5, 1, -0.1)
