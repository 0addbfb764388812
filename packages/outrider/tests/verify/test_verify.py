"""Verifiers one step at a time: edge cases, and the law of a single decision by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from outrider.config import LENIENCE, POSTERIOR_THRESHOLD, SamplingParams, SpeculationParams
from outrider.config import VERIFIERS as NAMES
from outrider.errors import ConfigError, NumericalError
from outrider.verify.distribution import Context, TargetRows
from outrider.verify.draft import EMPTY, Draft, Verdict
from outrider.verify.noise import Noise, Purpose
from outrider.verify.verifiers import make_verifier
from outrider.verify.verifiers.base import DraftSampler, Siblings, Verifier
from outrider.verify.verifiers.catalog import VERIFIERS
from outrider.verify.verifiers.lossy import Lenient, Typical
from outrider.verify.verifiers.residual import log_weights_of, q_row, residual
from tests.arrays import floats, log, softmax

INF = math.inf
BY_NAME: dict[str, Verifier] = {
    name: make_verifier(SpeculationParams(verifier=name))  # type: ignore[arg-type]
    for name in VERIFIERS
}
EXACT = [name for name, verifier in BY_NAME.items() if verifier.exact]
MATCHING, REJECTION, BLOCK, SEQUOIA = (BY_NAME[name] for name in ("matching", "rejection", "block", "sequoia"))


def rows(p: list[list[float]], draft: Draft) -> TargetRows:
    """Target rows with the given probabilities."""
    return TargetRows(log(p), SamplingParams(temperature=1.0), Context((), ()), draft)


def chain(token: int, q: list[float] | None = None) -> Draft:
    return Draft.chain([token], q_logits=None if q is None else log([q]))


def decide(draft: Draft, p: list[list[float]], seed: int = 0) -> Verdict:
    return REJECTION(draft, rows(p, draft), Noise(seed), 7)


def first_tokens(p: list[float], q: list[float], n: int = 1500) -> NDArray[np.float64]:
    """Counts of the first emitted token when drafts are drawn from ``q``."""
    counts = np.zeros(len(p))
    for seed in range(n):
        noise = Noise(seed)
        draft = chain(DraftSampler(noise, 0, shares_noise=False).draw(log(q), depth=0, node=0), q)
        verdict = REJECTION(draft, rows([p, p], draft), noise, 0)
        counts[draft.tokens[0] if verdict.path else verdict.token] += 1
    return counts


def test_lookup_holds_what_the_configuration_names() -> None:
    assert tuple(VERIFIERS) == NAMES
    assert all(v.name == name for name, v in BY_NAME.items())
    assert [name for name in NAMES if not BY_NAME[name].exact] == ["lenient", "typical"]
    assert [name for name in NAMES if BY_NAME[name].shares_noise] == ["matching"]
    assert [name for name in NAMES if not BY_NAME[name].takes_trees] == ["rejection", "block"]
    drawn = {how: [name for name in NAMES if BY_NAME[name].siblings is how] for how in Siblings}
    assert drawn[Siblings.INDEPENDENT] == ["iterative", "specinfer"]
    assert drawn[Siblings.GREEDY] == ["univer"]


def test_parameters_reach_the_verifier() -> None:
    assert make_verifier(SpeculationParams(verifier="lenient")) == Lenient(LENIENCE)
    assert make_verifier(SpeculationParams(verifier="lenient", lenience=0.2)) == Lenient(0.2)
    assert make_verifier(SpeculationParams(verifier="typical")) == Typical(POSTERIOR_THRESHOLD, 0.3)
    params = SpeculationParams(verifier="typical", posterior_threshold=0.25)
    assert make_verifier(params) == Typical(0.25, 0.5)


@pytest.mark.parametrize("verifier", VERIFIERS)
def test_an_empty_draft_is_plain_decoding(verifier: str) -> None:
    assert BY_NAME[verifier](EMPTY, rows([[0.0, 0.0, 1.0]], EMPTY), Noise(0), 3) == Verdict((), 2)


def test_matching_walks_the_tree_by_the_targets_own_draws() -> None:
    draft = Draft(tokens=(1, 2, 2, 0, 1), parents=(-1, -1, -1, 1, 3))  # the second 2 is a duplicate sibling
    p = [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    assert MATCHING(draft, rows(p, draft), Noise(0), 0) == Verdict((1, 3, 4), 2)
    p[4] = [1.0, 0.0, 0.0]
    assert MATCHING(draft, rows(p, draft), Noise(0), 0) == Verdict((1, 3), 0)


def test_coupled_drafts_of_the_target_itself_always_match() -> None:
    p = [0.1, 0.2, 0.3, 0.4]
    for seed in range(50):
        draws = DraftSampler(Noise(seed), base=5, shares_noise=True)
        draft = Draft.chain([draws.draw(log(p), depth=i, node=i) for i in range(3)])
        assert MATCHING(draft, rows([p] * 4, draft), Noise(seed), 5).path == (0, 1, 2)


def test_coupled_draws_agree_as_often_as_the_theory_says() -> None:
    p, q = np.array([0.5, 0.3, 0.15, 0.05]), np.array([0.2, 0.5, 0.1, 0.2])
    expected = sum(1 / np.maximum(p / p[i], q / q[i]).sum() for i in range(4))
    log_p, log_q = log(p), log(q)
    noise, n = Noise(1), 4000
    agreed = sum(noise.draw(log_p, i) == noise.draw(log_q, i) for i in range(n))
    assert stats.binomtest(agreed, n, expected).pvalue > 1e-3
    assert agreed / n > (p * q).sum() + 0.2  # independent draws


def test_uncoupled_draws_have_a_stream_of_their_own() -> None:
    noise, weights = Noise(3), np.zeros(1000, np.float32)
    draws = DraftSampler(noise, base=5, shares_noise=False)
    assert draws.draw(weights, depth=2, node=4) == noise.draw(weights, 5, Purpose.DRAFT, 4)
    assert DraftSampler(noise, 5, shares_noise=True).draw(weights, depth=2, node=4) == noise.draw(weights, 7)


@pytest.mark.parametrize("verifier", [name for name in VERIFIERS if not BY_NAME[name].takes_trees])
def test_verifiers_of_chains_refuse_branches(verifier: str) -> None:
    draft = Draft((1, 2), (-1, -1))
    with pytest.raises(ConfigError, match=f"{verifier}.*matching"):
        BY_NAME[verifier](draft, rows([[0.5, 0.5, 0.0]] * 3, draft), Noise(0), 0)


@pytest.mark.parametrize("q", [None, [0.0, 1.0, 0.0], [0.3, 0.3, 0.4]])
def test_one_hot_p_keeps_its_token_and_refuses_others(q: list[float] | None) -> None:
    p = [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    for seed in range(30):
        assert decide(chain(1, q), p, seed) == Verdict((0,), 2)
        other = None if q is None else q[::-1]
        assert decide(chain(2, other), p, seed) == Verdict((), 1)


def test_p_equal_to_q_accepts_always() -> None:
    p = [0.1, 0.2, 0.3, 0.4]
    assert all(decide(chain(token, p), [p, p], seed).path == (0,) for token in range(4) for seed in range(50))


def test_disjoint_supports_always_refuse_and_draw_from_p() -> None:
    p = [0.0, 0.0, 0.25, 0.75]
    counts = np.zeros(4)
    for seed in range(2000):
        verdict = decide(chain(0, [0.5, 0.5, 0.0, 0.0]), [p, p], seed)
        assert verdict.path == ()
        counts[verdict.token] += 1
    assert counts[:2].sum() == 0
    assert stats.chisquare(counts[2:], [500, 1500]).pvalue > 1e-3


@pytest.mark.parametrize(
    ("p", "q"),
    [
        ([0.7, 0.2, 0.1, 0.0], [0.1, 0.2, 0.3, 0.4]),
        ([0.25, 0.25, 0.25, 0.25], [0.97, 0.01, 0.01, 0.01]),
        ([0.5, 0.0, 0.5, 0.0], [0.0, 0.5, 0.5, 0.0]),
        ([0.2, 0.3, 0.5, 0.0], [1.0, 0.0, 0.0, 0.0]),
    ],
)
def test_the_first_token_has_the_targets_law(p: list[float], q: list[float]) -> None:
    counts = first_tokens(p, q)
    possible = np.array(p) > 0
    assert counts[~possible].sum() == 0
    assert stats.chisquare(counts[possible], np.array(p)[possible] * counts.sum()).pvalue > 1e-3


@pytest.mark.parametrize("q", [[0.5, 0.0, 0.5], [math.nan] * 3, [0.0, 0.0, 0.0], [INF, 1.0, 1.0], [1.0]], ids=str)
def test_a_q_that_cannot_be_true_is_taken_as_one_hot(q: list[float]) -> None:
    p = [[0.3, 0.3, 0.4]] * 2
    for seed in range(100):
        assert decide(chain(1, q), p, seed) == decide(chain(1), p, seed)


def test_q_may_be_padded_differently() -> None:
    p = [[0.3, 0.3, 0.4]] * 2
    for seed in range(100):
        expected = decide(chain(1, [0.2, 0.5, 0.3]), p, seed)
        assert decide(chain(1, [0.2, 0.5, 0.3, 0.0, 0.0]), p, seed) == expected
        expected = decide(chain(1, [0.5, 0.5, 0.0]), p, seed)
        assert decide(chain(1, [0.5, 0.5]), p, seed) == expected


def test_the_residual_falls_back_to_p_when_rounding_leaves_nothing() -> None:
    p = np.array([0.25, 0.75])
    q = np.array([0.25 + 1e-17, 0.75 + 1e-16])
    assert residual(p, q).tolist() == [0.25, 0.75]


def test_tiny_residuals_are_not_lost() -> None:
    p = np.array([1e-300, 1.0, 3e-300])
    q = np.array([0.0, 1.0, 0.0])
    assert residual(p, q).tolist() == pytest.approx([0.25, 0.0, 0.75])
    assert softmax(log_weights_of(residual(p, q))).tolist() == pytest.approx([0.25, 0.0, 0.75])


@pytest.mark.parametrize("verifier", VERIFIERS)
def test_a_row_of_nan_is_an_error(verifier: str) -> None:
    draft = chain(1)
    with pytest.raises(NumericalError):
        BY_NAME[verifier](draft, rows([[math.nan] * 3] * 2, draft), Noise(0), 0)


@pytest.mark.parametrize("verifier", VERIFIERS)
def test_rows_after_a_refusal_are_never_looked_at(verifier: str) -> None:
    draft = Draft.chain([0, 1])
    p = [[0.0, 1.0], [math.nan, math.nan], [math.nan, math.nan]]
    assert BY_NAME[verifier](draft, rows(p, draft), Noise(0), 0) == Verdict((), 1)


@pytest.mark.parametrize("verifier", ["iterative", "specinfer", "sequoia"])
def test_on_chains_recursive_rejection_is_rejection(verifier: str) -> None:
    q = log([[0.5, 0.3, 0.2], [0.2, 0.2, 0.6], [0.1, 0.8, 0.1]])
    p = [[0.2, 0.3, 0.5], [0.3, 0.3, 0.4], [0.4, 0.5, 0.1], [0.6, 0.2, 0.2]]
    for seed in range(100):
        noise = Noise(seed)
        draws = DraftSampler(noise, 4, shares_noise=False)
        draft = Draft.chain([draws.draw(row, depth=i, node=i) for i, row in enumerate(q)], q_logits=q)
        assert BY_NAME[verifier](draft, rows(p, draft), noise, 4) == REJECTION(draft, rows(p, draft), noise, 4)


def test_one_token_under_block_verification_is_rejection() -> None:
    p = [[0.2, 0.3, 0.5], [0.3, 0.3, 0.4]]
    for seed in range(200):
        draft = chain(seed % 3, [0.5, 0.3, 0.2])
        assert BLOCK(draft, rows(p, draft), Noise(seed), 0) == REJECTION(draft, rows(p, draft), Noise(seed), 0)


def test_block_verification_lets_a_likely_token_make_good_for_an_unlikely_one() -> None:
    """The first token alone is kept half of the time, but the two together are as likely under p as under q."""
    q = log([[1.0, 0.0], [0.5, 0.5]])
    p = [[0.5, 0.5], [1.0, 0.0], [0.5, 0.5]]
    draft = Draft.chain([0, 0], q_logits=q)
    kept = [len(BLOCK(draft, rows(p, draft), Noise(seed), 0).path) for seed in range(400)]
    assert set(kept) == {2}
    kept = [len(REJECTION(draft, rows(p, draft), Noise(seed), 0).path) for seed in range(400)]
    assert 150 < kept.count(0) < 250
    assert kept.count(1) == 0


def test_block_verification_stops_where_p_is_zero() -> None:
    draft = Draft.chain([0, 1, 0], q_logits=log([[0.5, 0.5]] * 3))
    p = [[1.0, 0.0], [1.0, 0.0], [math.nan, math.nan], [math.nan, math.nan]]
    assert BLOCK(draft, rows(p, draft), Noise(0), 0) == Verdict((0,), 0)


def test_siblings_are_judged_without_the_tokens_before_them() -> None:
    draft = Draft((2, 0, 1), (-1, -1, -1), log([[0.2, 0.3, 0.5]] * 3))
    assert q_row(draft, 0, 3).tolist() == pytest.approx([0.2, 0.3, 0.5])
    assert q_row(draft, 1, 3, taken=[2]).tolist() == pytest.approx([0.4, 0.6, 0.0])
    assert q_row(draft, 2, 4, taken=[2, 0, 3]).tolist() == [0.0, 1.0, 0.0, 0.0]
    assert q_row(draft, 0, 3, taken=[2]).tolist() == [0.0, 0.0, 1.0]  # a duplicate


def test_the_last_sibling_of_all_tokens_is_accepted_if_no_other_was() -> None:
    draft = Draft((2, 0, 1), (-1, -1, -1), log([[0.2, 0.3, 0.5]] * 3))
    p = [[0.1, 0.6, 0.3]] * 4
    paths = [SEQUOIA(draft, rows(p, draft), Noise(seed), 0).path for seed in range(100)]
    assert set(paths) == {(0,), (2,)}


@pytest.mark.parametrize("verifier", ["iterative", "specinfer", "sequoia", "lenient"])
def test_a_refused_token_s_duplicates_are_refused(verifier: str) -> None:
    draft = Draft((0, 0, 0), (-1, -1, -1), log([[0.5, 0.25, 0.25]] * 3))
    p = [[0.05, 0.35, 0.6]] * 4
    verdicts = [BY_NAME[verifier](draft, rows(p, draft), Noise(seed), 0) for seed in range(200)]
    assert any(v.path for v in verdicts)
    assert all(v.path or v.token != 0 for v in verdicts)


def test_random_order_is_random_and_draft_order_is_not() -> None:
    """With p = q the first sibling judged is accepted."""
    draft = Draft((0, 1, 0), (-1, -1, -1), log([[0.5, 0.5]] * 3))
    p = [[0.5, 0.5]] * 4
    first = {v: [BY_NAME[v](draft, rows(p, draft), Noise(s), 0).path[0] for s in range(300)] for v in BY_NAME
             if v in ("iterative", "specinfer", "sequoia")}  # fmt: skip
    assert set(first["iterative"]) == set(first["sequoia"]) == {0}
    assert stats.chisquare(np.bincount(first["specinfer"])).pvalue > 1e-3


@pytest.mark.parametrize("verifier", [name for name in VERIFIERS if BY_NAME[name].takes_trees and name != "lenient"])
def test_greedy_trees_keep_the_longest_agreeing_path(verifier: str) -> None:
    draft = Draft((1, 2, 2, 0, 1, 0), (-1, -1, -1, 1, 3, 2), np.zeros((6, 3), np.float32))
    best = [2, 0, 0, 0, 1, 0, 0]
    for seed in range(20):
        p = TargetRows(np.eye(3)[best], SamplingParams(), Context((), ()), draft)
        verdict = BY_NAME[verifier](draft, p, Noise(seed), 0)
        tokens = [*(draft.tokens[i] for i in verdict.path), verdict.token]
        assert tokens in ([2, 0, 1, 0], [2, 0, 0])  # of equal children, either may be the one kept
        assert tokens == [2, 0, 1, 0] or verifier == "specinfer"


def test_lenience_accepts_more_and_no_token_more_than_l_times_too_often() -> None:
    p, q = [0.1, 0.3, 0.6], [0.7, 0.2, 0.1]
    n, rates = 800, []
    for lenience in (1.0, 0.5, 0.3, 0.1):
        counts, accepted = np.zeros(3), 0
        for seed in range(n):
            noise = Noise(seed)
            draft = chain(DraftSampler(noise, 0, shares_noise=False).draw(log(q), depth=0, node=0), q)
            verdict = Lenient(lenience)(draft, rows([p, p], draft), noise, 0)
            counts[draft.tokens[0] if verdict.path else verdict.token] += 1
            accepted += len(verdict.path)
        for count, chance in zip(counts, p, strict=True):
            assert stats.binomtest(int(count), n, min(1.0, chance / lenience), "greater").pvalue > 1e-3
        expected = np.minimum(np.array(p) / lenience, q).sum()  # Leviathan et al. 2023, A.5
        assert stats.binomtest(accepted, n, min(1.0, expected)).pvalue > 1e-3
        rates.append(accepted / n)
    assert rates == sorted(rates)
    assert rates[0] == pytest.approx(0.4, abs=0.06)
    assert rates[3] == 1.0


@pytest.mark.parametrize(("lenience", "path"), [(1.0, (2,)), (0.6, (2, 3)), (0.1, (2, 3)), (0.05, (2, 3, 4))])
def test_greedy_lenience_accepts_what_is_nearly_best(lenience: float, path: tuple[int, ...]) -> None:
    draft = Draft(tokens=(0, 1, 2, 1, 0), parents=(-1, -1, -1, 2, 3))
    logits = log(np.array([[0.3, 0.3, 0.4], [1, 0, 0], [1, 0, 0], [0.5, 0.4, 0.1], [0.06, 0.9, 0.04], [0, 0, 1]]))
    p = TargetRows(logits, SamplingParams(top_k=1), Context((), ()), draft)
    verdict = Lenient(lenience)(draft, p, Noise(0), 0)
    assert verdict.path == path
    assert verdict.token == {1: 0, 2: 1, 3: 2}[len(path)]


def test_greedy_lenience_respects_penalties_and_bans() -> None:
    draft = Draft.chain([1])
    logits = floats([[2.0, 1.9, 0.0], [0.0, 0.0, 1.0]])
    for params, kept in (
        (SamplingParams(), True),
        (SamplingParams(banned_token_ids=[1]), False),
        (SamplingParams(logit_bias={1: -3.0}), False),
        (SamplingParams(presence_penalty=3.0), False),
    ):
        p = TargetRows(logits, params, Context((), (1,)), draft)
        assert bool(Lenient(0.5)(draft, p, Noise(0), 1).path) == kept


def test_typical_acceptance_by_threshold_and_entropy() -> None:
    """A flat row of four has exp(-H) = 1/4, a one-hot row 1."""
    flat, sure = [0.25] * 4, [0.9, 0.05, 0.05, 0.0]
    certain = math.exp(0.9 * math.log(0.9) + 0.1 * math.log(0.05))
    for p, token, threshold, alpha, kept in (
        (flat, 3, 1.0, 0.99, True),
        (flat, 3, 1.0, 1.0, False),  # p has to be above alpha exp(-H), not at it
        (flat, 3, 0.2, 1.0, True),
        (sure, 1, 0.09, 0.3, False),
        (sure, 1, 0.04, 0.3, True),
        (sure, 1, 1.0, 0.049 / certain, True),
        (sure, 1, 1.0, 0.051 / certain, False),
        (sure, 3, 1e-9, 1e-9, False),
    ):
        draft = chain(token)
        verdict = Typical(threshold, alpha)(draft, rows([p, flat], draft), Noise(0), 0)
        assert bool(verdict.path) == kept, (p, token, threshold, alpha)


def test_typical_acceptance_keeps_the_longest_path_then_the_likeliest() -> None:
    draft = Draft(tokens=(0, 1, 2, 0, 1), parents=(-1, -1, -1, 1, 2))
    p = [[0.5, 0.3, 0.2], [1.0, 0.0, 0.0], [0.6, 0.2, 0.2], [0.05, 0.95, 0.0], *[[0.0, 0.0, 1.0]] * 2]
    assert Typical(0.09, 0.3)(draft, rows(p, draft), Noise(0), 0) == Verdict((2, 4), 2)  # 0.2 0.95 > 0.3 0.6
    p[3] = [0.55, 0.45, 0.0]
    assert Typical(0.09, 0.3)(draft, rows(p, draft), Noise(0), 0) == Verdict((1, 3), 2)


def test_typical_acceptance_at_temperature_0_is_greedy() -> None:
    draft = Draft((1, 0), (-1, -1))
    p = TargetRows(floats([[2.0, 1.99], [0.0, 1.0], [1.0, 0.0]]), SamplingParams(), Context((), ()), draft)
    assert Typical(0.01, 0.01)(draft, p, Noise(0), 0) == Verdict((1,), 0)
