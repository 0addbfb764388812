"""The best of several sources: every one is tried, the most rewarding goes first, and nobody is forgotten."""

from __future__ import annotations

from outrider.config.combination import Group
from outrider.engine.drafting.ranking import PROBE_INTERVAL, Ranking

A: Group = ("a",)
B: Group = ("b",)
C: Group = ("c", "d")


def step(ranking: Ranking, reward: dict[Group, int], silent: tuple[Group, ...] = ()) -> Group:
    """Ask in order; the first that is not silent drafts and wins its reward."""
    chosen = next(group for group in ranking.order() if group not in silent)
    ranking.asked(chosen)
    ranking.observe(reward[chosen])
    return chosen


def test_the_order_given_until_something_is_known() -> None:
    assert Ranking([A, B, C]).order() == [A, B, C]


def test_each_is_tried_and_the_best_goes_on() -> None:
    ranking, reward = Ranking([A, B, C]), {A: 1, B: 3, C: 2}
    chosen = [step(ranking, reward) for _ in range(PROBE_INTERVAL - 1)]
    assert chosen[:3] == [A, B, C]
    assert set(chosen[3:]) == {B}


def test_others_are_probed_so_that_they_can_recover() -> None:
    ranking = Ranking([A, B])
    before = [step(ranking, {A: 2, B: 1}) for _ in range(4 * PROBE_INTERVAL)]
    assert before.count(B) == 1 + 4
    after = [step(ranking, {A: 0, B: 1}) for _ in range(2 * PROBE_INTERVAL)]
    assert after[PROBE_INTERVAL:].count(A) == 1


def test_silence_is_not_held_against_anyone() -> None:
    ranking, reward = Ranking([A, B]), {A: 2, B: 1}
    for _ in range(6):
        step(ranking, reward, silent=(A,))
    assert step(ranking, reward) == A
    ranking.order()
    ranking.observe(5)  # a step without a draft teaches nothing
    assert ranking.order()[0] == A
    for _ in range(30):
        ranking.order()
        ranking.observe(0)
    assert [ranking.order()[0] for _ in range(4)].count(A) >= 3
