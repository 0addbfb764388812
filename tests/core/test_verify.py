"""Verifiers one step at a time: edge cases, and the law of a single decision by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats

from outrider.config import VERIFIERS as NAMES
from outrider.config import SamplingParams
from outrider.core.distribution import Context, TargetRows
from outrider.core.draft import EMPTY, Draft, Verdict
from outrider.core.noise import Noise, Purpose
from outrider.core.verify import VERIFIERS, Draws
from outrider.core.verify.rejection import _residual
from outrider.errors import ConfigError, NumericalError

INF = math.inf
MATCHING, REJECTION = VERIFIERS["matching"], VERIFIERS["rejection"]


def rows(p: list[list[float]], draft: Draft) -> TargetRows:
    """Target rows with the given probabilities."""
    return TargetRows(torch.tensor(p).log(), SamplingParams(temperature=1.0), Context((), ()), draft)


def chain(token: int, q: list[float] | None = None) -> Draft:
    return Draft.chain([token], q=None if q is None else torch.tensor([q]).log())


def decide(draft: Draft, p: list[list[float]], seed: int = 0) -> Verdict:
    return REJECTION(draft, rows(p, draft), Noise(seed), 7)


def first_tokens(p: list[float], q: list[float], n: int = 4000) -> NDArray[np.float64]:
    """Counts of the first emitted token when drafts are drawn from ``q``."""
    counts = np.zeros(len(p))
    for seed in range(n):
        noise = Noise(seed)
        draft = chain(Draws(noise, 0, coupled=False).draw(torch.tensor(q).log(), depth=0, node=0), q)
        verdict = REJECTION(draft, rows([p, p], draft), noise, 0)
        counts[draft.tokens[0] if verdict.path else verdict.token] += 1
    return counts


def test_lookup_holds_what_the_configuration_names() -> None:
    assert tuple(VERIFIERS) == NAMES
    assert all(v.exact and v.name == name for name, v in VERIFIERS.items())
    assert MATCHING.coupled
    assert not REJECTION.coupled


@pytest.mark.parametrize("verifier", VERIFIERS)
def test_an_empty_draft_is_plain_decoding(verifier: str) -> None:
    assert VERIFIERS[verifier](EMPTY, rows([[0.0, 0.0, 1.0]], EMPTY), Noise(0), 3) == Verdict((), 2)


def test_matching_walks_the_tree_by_the_targets_own_draws() -> None:
    draft = Draft(tokens=(1, 2, 2, 0, 1), parents=(-1, -1, -1, 1, 3))  # the second 2 is a duplicate sibling
    p = [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    assert MATCHING(draft, rows(p, draft), Noise(0), 0) == Verdict((1, 3, 4), 2)
    p[4] = [1.0, 0.0, 0.0]
    assert MATCHING(draft, rows(p, draft), Noise(0), 0) == Verdict((1, 3), 0)


def test_coupled_drafts_of_the_target_itself_always_match() -> None:
    p = [0.1, 0.2, 0.3, 0.4]
    for seed in range(50):
        draws = Draws(Noise(seed), base=5, coupled=True)
        draft = Draft.chain([draws.draw(torch.tensor(p).log(), depth=i, node=i) for i in range(3)])
        assert MATCHING(draft, rows([p] * 4, draft), Noise(seed), 5).path == (0, 1, 2)


def test_coupled_draws_agree_as_often_as_the_theory_says() -> None:
    p, q = np.array([0.5, 0.3, 0.15, 0.05]), np.array([0.2, 0.5, 0.1, 0.2])
    expected = sum(1 / np.maximum(p / p[i], q / q[i]).sum() for i in range(4))
    log_p, log_q = torch.tensor(p).log().float(), torch.tensor(q).log().float()
    noise, n = Noise(1), 10_000
    agreed = sum(noise.draw(log_p, i) == noise.draw(log_q, i) for i in range(n))
    assert stats.binomtest(agreed, n, expected).pvalue > 1e-3
    assert agreed / n > (p * q).sum() + 0.2  # independent draws


def test_uncoupled_draws_have_a_stream_of_their_own() -> None:
    noise, weights = Noise(3), torch.zeros(1000)
    draws = Draws(noise, base=5, coupled=False)
    assert draws.draw(weights, depth=2, node=4) == noise.draw(weights, 5, Purpose.DRAFT, 4)
    assert Draws(noise, 5, coupled=True).draw(weights, depth=2, node=4) == noise.draw(weights, 7)


def test_rejection_refuses_branches() -> None:
    draft = Draft((1, 2), (-1, -1))
    with pytest.raises(ConfigError, match="matching"):
        REJECTION(draft, rows([[0.5, 0.5, 0.0]] * 3, draft), Noise(0), 0)


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
    p = torch.tensor([0.25, 0.75], dtype=torch.float64)
    q = torch.tensor([0.25 + 1e-17, 0.75 + 1e-16], dtype=torch.float64)
    assert torch.softmax(_residual(p, q), 0).tolist() == pytest.approx([0.25, 0.75])


def test_tiny_residuals_are_not_lost() -> None:
    p = torch.tensor([1e-300, 1.0, 3e-300], dtype=torch.float64)
    q = torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)
    assert torch.softmax(_residual(p, q), 0).tolist() == pytest.approx([0.25, 0.0, 0.75])


@pytest.mark.parametrize("verifier", VERIFIERS)
def test_a_row_of_nan_is_an_error(verifier: str) -> None:
    draft = chain(1)
    with pytest.raises(NumericalError):
        VERIFIERS[verifier](draft, rows([[math.nan] * 3] * 2, draft), Noise(0), 0)


@pytest.mark.parametrize("verifier", VERIFIERS)
def test_rows_after_a_refusal_are_never_looked_at(verifier: str) -> None:
    draft = Draft.chain([0, 1])
    p = [[0.0, 1.0], [math.nan, math.nan], [math.nan, math.nan]]
    assert VERIFIERS[verifier](draft, rows(p, draft), Noise(0), 0) == Verdict((), 1)
