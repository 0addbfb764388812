"""On laws and costs that are known, the adaptive length is near the best fixed one, and soon."""

from __future__ import annotations

import statistics

import pytest

from outrider.engine.draft_length.adaptive import AdaptiveLength
from outrider.verify.shapes import Acceptance as ByRank
from tests.engine.draft_length.simulation import Law, always, asked, best_fixed, changing, machine, play

STEPS = 200
LAWS = {str(alpha): always(alpha) for alpha in (0.1, 0.3, 0.5, 0.7, 0.9)} | {
    f"{before} to {after}": changing(before, after, STEPS // 2)
    for before, after in ((0.9, 0.1), (0.1, 0.9), (0.7, 0.3))
}


def regret(cost: str, law: Law, score: Law | None, steps: int = STEPS) -> float:
    """The share of speed that is lost to the best fixed length, on average over a few requests of their own."""
    best, _ = best_fixed(machine(cost), law, steps)
    rates = []
    for seed in range(2):
        curve = machine(cost)
        policy = AdaptiveLength(lambda curve=curve: curve)  # type: ignore[misc]
        rates.append(play(policy, asked(), curve, law, steps=steps, score=score, seed=seed).rate)
    return 1 - statistics.mean(rates) / best


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(("cost", "scored"), [("flat", True), ("linear", True), ("linear", False), ("steep", True)])
def test_less_than_3_percent_is_lost_to_the_best_fixed_length(cost: str, law: str, scored: bool) -> None:
    assert regret(cost, LAWS[law], LAWS[law] if scored else None) < 0.03


@pytest.mark.parametrize(("alpha", "said"), [(0.3, 0.95), (0.5, 0.95), (0.9, 0.3), (0.9, 0.1)])
def test_wrong_scores_are_corrected_in_time(alpha: float, said: float) -> None:
    assert regret("linear", always(alpha), always(said)) < 0.03


def first_lengths(measured: ByRank, alpha: float, score: float | None = None) -> list[int]:
    curve = machine("linear")
    policy = AdaptiveLength(lambda: curve, measured=lambda source: measured)
    scores = None if score is None else always(score)
    return play(policy, asked(), curve, always(alpha), steps=60, score=scores).lengths


@pytest.mark.parametrize("alpha", [0.3, 0.7, 0.9])
def test_the_first_step_is_right_where_acceptance_was_measured_and_wrong_where_that_is_wrong(alpha: float) -> None:
    _, best = best_fixed(machine("linear"), always(alpha), 1)
    assert abs(first_lengths(((alpha,),), alpha)[0] - best) <= 1
    wrong = first_lengths(((1.2 - alpha,),), alpha)
    assert abs(wrong[0] - best) >= 2
    assert abs(statistics.mean(wrong[30:]) - best) < abs(wrong[0] - best)  # learned since
    assert abs(first_lengths(((1.2 - alpha,),), alpha, score=alpha)[0] - best) <= 1  # a score knows better


def taught(own: float, others: float, *, domain: str = "", prompt: int = 3, temperature: float = 0.0) -> int:
    """The first length of a short greedy request, after requests of its kind with one acceptance and others of their
    own kind with another."""
    curve = machine("linear")
    policy = AdaptiveLength(lambda: curve)
    for i in range(6):
        long = asked(f"long {i}", prompt=3000)
        play(policy, long, curve, always(others), steps=20, score=always(0.6), seed=i)
        short = asked(f"short {i}", prompt=prompt, temperature=temperature)
        play(policy, short, curve, always(own), steps=20, score=always(0.6), seed=i)
    later = asked("later", domain, prompt=prompt, temperature=temperature)
    return play(policy, later, curve, always(own), steps=1, score=always(0.6)).lengths[0]


def test_a_request_begins_with_what_others_taught() -> None:
    before = taught(0.9, 0.9, domain="somebody else")
    assert taught(0.9, 0.9) >= before + 4
    assert taught(0.1, 0.1) < before


def test_nothing_learned_crosses_to_another_domain() -> None:
    assert taught(0.9, 0.9, domain="other") == taught(0.1, 0.1, domain="other") == taught(0.9, 0.1, domain="other")
