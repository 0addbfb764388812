"""Running estimates of how likely a draft token is to be kept."""

from __future__ import annotations

import pytest

from outrider.engine.draft_length.acceptance import Correction, SourceAcceptance, ranks_of
from outrider.engine.draft_length.settings import DEFAULT_SETTINGS


def learned(*trials: tuple[bool, int], score: float = 0.5) -> SourceAcceptance:
    """After so many tokens with a score that were accepted, or not, each in a request of its own."""
    acceptance = SourceAcceptance(DEFAULT_SETTINGS)
    for accepted, times in trials:
        for _ in range(times):
            acceptance.learn(acceptance.prior(0, score), fresh(), accepted)
    return acceptance


def fresh() -> Correction:
    return Correction(DEFAULT_SETTINGS.request_variance, DEFAULT_SETTINGS.request_variance)


def chance(acceptance: SourceAcceptance, score: float = 0.5) -> float:
    return acceptance.token(acceptance.prior(0, score), fresh())


def test_scores_are_believed_until_something_is_known() -> None:
    acceptance = SourceAcceptance(DEFAULT_SETTINGS)
    assert [chance(acceptance, score) for score in (0.0, 0.3, 1.0)] == pytest.approx([0.02, 0.3, 0.98])
    assert acceptance.prior(0) == 0.5


def test_what_was_measured_counts_where_there_is_no_score() -> None:
    acceptance = SourceAcceptance(DEFAULT_SETTINGS, ((0.8, 0.1), (0.6,)))
    assert [acceptance.prior(0), acceptance.prior(0, None, 1), acceptance.prior(5)] == [0.8, 0.1, 0.6]
    assert acceptance.prior(0, 0.3) == 0.3
    assert acceptance.level([()], fresh()) == 0.8


def test_estimates_follow_the_traffic() -> None:
    assert chance(learned((True, 3000))) > 0.95
    assert chance(learned((True, 3000), (False, 650))) < 0.4  # against 0.83 if all had counted alike
    assert chance(learned(*[(True, 1), (False, 1)] * 1500, (False, 400))) < 0.3


def test_a_wrong_score_is_corrected_however_sure_it_was() -> None:
    assert chance(learned((False, 200), score=0.95), 0.95) < 0.1


def test_scores_of_one_size_may_be_wrong_and_others_right() -> None:
    """As a text is said again: tokens seen once before are right, and doubtful ones as doubtful as ever."""
    acceptance = SourceAcceptance(DEFAULT_SETTINGS)
    for i in range(200):
        acceptance.learn(0.6, fresh(), True)
        acceptance.learn(0.3, fresh(), i % 10 < 3)
    assert acceptance.token(0.6, fresh()) > 0.9
    assert acceptance.token(0.3, fresh()) == pytest.approx(0.3, abs=0.15)


def test_a_request_learns_of_itself() -> None:
    acceptance, own = learned((True, 50), (False, 50)), fresh()
    for _ in range(20):
        acceptance.learn(0.5, own, False)
    assert acceptance.token(0.5, own) < chance(acceptance) - 0.05


def test_a_level_is_worth_what_all_its_places_bring() -> None:
    acceptance = SourceAcceptance(DEFAULT_SETTINGS)
    assert acceptance.level([[0.4]], fresh()) == pytest.approx(0.4 * 0.5)
    assert acceptance.level([[0.4], [0.3]], fresh()) == pytest.approx(0.7 * 0.5)
    assert acceptance.level([[0.9], [0.8]], fresh()) == pytest.approx(0.5)
    for _ in range(50):
        acceptance.learn_level(1, fresh(), True)
    assert acceptance.level([[0.4]], fresh()) > 0.4 * 0.8


def test_ranks_are_places_among_siblings() -> None:
    assert ranks_of((-1, -1, 0, 0, 1)) == [0, 1, 0, 1, 0]
