"""When more replicas are wanted, and when fewer."""

from __future__ import annotations

from outrider_fleet.ingress.autoscaling import DOWN_AFTER, UP_AFTER, Autoscaler, Demand


def wanted(scaler: Autoscaler, demands: list[Demand], seconds: float, start: float = 0.0, rate: int = 100) -> int:
    """After so many seconds of the same demand, and ``rate`` tokens a second of each sequence."""
    result, steps = len(demands), max(1, round(seconds * 2))
    for i in range(steps + 1):
        moved = [Demand(d.sequences, d.places, d.tokens + round(rate * d.sequences * i / 2)) for d in demands]
        result = scaler.wanted(moved, start + i / 2)
        if result != len(demands):
            return result
    return result


def test_full_places_ask_for_more_and_empty_ones_for_fewer() -> None:
    assert wanted(Autoscaler(1, 4), [Demand(8, 8, 0)], UP_AFTER) == 2
    assert wanted(Autoscaler(1, 4), [Demand(8, 8, 0)], UP_AFTER / 2) == 1, "not for a moment's load"
    assert wanted(Autoscaler(1, 4), [Demand(30, 8, 0)], UP_AFTER) == 4, "a long queue asks for several at once"
    idle = [Demand(0, 8, 0), Demand(1, 8, 0)]
    assert wanted(Autoscaler(1, 4), idle, DOWN_AFTER) == 1
    assert wanted(Autoscaler(1, 4), idle, DOWN_AFTER - 2) == 2
    assert wanted(Autoscaler(2, 4), idle, DOWN_AFTER) == 2, "never below the least"
    assert wanted(Autoscaler(1, 2), [Demand(8, 8, 0)] * 2, UP_AFTER) == 2, "never above the most"


def test_sequences_that_have_become_slow_ask_for_more() -> None:
    scaler, half = Autoscaler(1, 4), [Demand(4, 8, 0)]
    assert wanted(scaler, half, 5) == 1
    assert wanted(scaler, [Demand(4, 8, 10_000)], 5, start=10, rate=20) == 2


def test_without_replicas_the_least_are_wanted() -> None:
    assert Autoscaler(2, 4).wanted([], 0.0) == 2
