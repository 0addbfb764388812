"""Nobody starves: fair shares between tenants, age within one, and a place for whoever has none."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.engine.fair_queue import AGED
from outrider.engine.scheduler import PATIENCE, PATIENCE_SECONDS, Scheduler
from tests.engine.test_scheduler import ToyMemory, ToyRequest, make, run_step

HIGHEST = -(2**31)
names = count()


def request(tenant: str, prompt: int = 2, output: int = 1, **more: int) -> ToyRequest:
    return ToyRequest(f"{tenant}{next(names)}", prompt, output, tenant=tenant, **more)


def steps_until_done(scheduler: Scheduler[ToyRequest], memory: ToyMemory, wanted: ToyRequest, most: int = 1000) -> int:
    for step in range(1, most):
        run_step(scheduler, memory)
        if wanted.done >= wanted.output:
            return step
    raise AssertionError(f"{wanted.id} starves")


def test_the_highest_priority_all_the_time_starves_nobody() -> None:
    scheduler, memory = make(batch=2)
    for _ in range(24):
        scheduler.add(request("t", priority=HIGHEST))
    victim = request("t")
    scheduler.add(victim)
    served = 0
    while victim.done < victim.output:
        done = len(run_step(scheduler, memory))
        for _ in range(done):  # each that ends comes again
            scheduler.add(request("t", priority=HIGHEST))
        served += done
        assert served <= AGED * (24 + 1) + 2, "it starves"
    assert served > 0, "nobody else was served, so that nobody could starve it"


def test_priority_still_goes_before_arrival() -> None:
    scheduler, memory = make(batch=1)
    for _ in range(8):
        scheduler.add(request("t"))
    urgent = request("t", priority=HIGHEST)
    scheduler.add(urgent)
    assert steps_until_done(scheduler, memory, urgent) == 1


def test_a_place_given_by_age_is_not_lost_to_priority() -> None:
    scheduler, memory = make(total=24, batch=2)
    victim = request("t", prompt=8, output=8)
    scheduler.add(victim)
    for _ in range(8):
        scheduler.add(request("t", prompt=8, output=8, priority=HIGHEST))
    while victim not in scheduler.running:
        run_step(scheduler, memory)
    while victim.done < victim.output:
        run_step(scheduler, memory)
        assert victim in scheduler.running or victim.done == victim.output
    assert scheduler.preemptions > 0  # memory was short for two


def test_a_tenant_with_one_request_does_not_wait_behind_many_of_another() -> None:
    scheduler, memory = make(batch=2)
    for _ in range(30):
        scheduler.add(request("crowd", output=4, priority=HIGHEST))
    for _ in range(5):
        run_step(scheduler, memory)
    alone = request("alone")
    scheduler.add(alone)
    assert steps_until_done(scheduler, memory, alone) <= 5  # as soon as one of two places is free


def test_tenants_that_always_wait_are_served_alike() -> None:
    scheduler, memory = make(batch=4, budget=16)
    sizes = {"long": (40, 2), "short": (2, 3), "crowd": (6, 6)}
    served = dict.fromkeys(sizes, 0)
    waiting: list[ToyRequest] = []
    for _ in range(600):
        waiting = [one for one in waiting if one not in scheduler.running and one.done < one.output]
        for tenant, (prompt, output) in sizes.items():
            for _ in range(sum(one.tenant == tenant for one in waiting), 8 if tenant == "crowd" else 2):
                waiting.append(request(tenant, prompt, output, priority=HIGHEST if tenant == "crowd" else 0))
                scheduler.add(waiting[-1])
        for each in run_step(scheduler, memory):
            served[each.request.tenant] += each.num_tokens
    assert max(served.values()) - min(served.values()) < 0.05 * sum(served.values())


def test_tenants_get_the_same_seconds_whatever_their_tokens_take() -> None:
    """One whose tokens take ten times as long has a tenth of them."""
    scheduler, memory = make(batch=1)
    served = {"slow": 0, "quick": 0}
    for tenant in [*served, *served]:  # none is ever away
        scheduler.add(request(tenant, prompt=1))
    for _ in range(600):
        (each,) = scheduler.schedule().scheduled
        tenant = each.request.tenant
        scheduler.charge(tenant, 0.5 if tenant == "slow" else 0.05)
        served[tenant] += 1
        scheduler.remove(each.request.id)
        memory.held.pop(each.request.id)
        scheduler.add(request(tenant, prompt=1))
    assert 9 <= served["quick"] / served["slow"] <= 11


def test_a_tenant_without_a_place_waits_for_seconds_where_steps_are_long() -> None:
    scheduler, memory = make(batch=2, total=100_000)
    for _ in range(2):
        scheduler.add(request("crowd", output=10_000))
    run_step(scheduler, memory)
    victim, steps = request("a"), 0
    scheduler.add(victim)
    while victim.done < victim.output:
        run_step(scheduler, memory)
        scheduler.charge("crowd", 0.5)
        steps += 1
    assert steps <= PATIENCE_SECONDS / 0.5 + 3 < PATIENCE


def test_where_a_step_has_time_for_some_all_decode_in_turn() -> None:
    scheduler, memory = make(batch=4, total=100_000)
    crowd = [request("crowd", output=10_000) for _ in range(3)]
    alone = request("alone", output=10_000)
    for one in (*crowd, alone):
        scheduler.add(one)
    while len(scheduler.running) < 4 or any(one.num_pending_tokens > 1 for one in crowd):
        run_step(scheduler, memory)
    before = [one.done for one in (*crowd, alone)]
    for _ in range(30):
        run_step(scheduler, memory, most_tokens=2)
    gained = [one.done - was for one, was in zip((*crowd, alone), before, strict=True)]
    assert gained == [10, 10, 10, 30]


def test_prompts_are_read_beside_drafts_where_there_is_time_for_few_tokens() -> None:
    scheduler, memory = make(batch=4, total=100_000)
    scheduler.add(request("crowd", output=10_000, draft_limit=64))
    run_step(scheduler, memory)
    victim = request("a", prompt=20)
    scheduler.add(victim)
    for _ in range(6):
        run_step(scheduler, memory, most_tokens=12)
    assert victim.done == 1


def test_time_away_earns_nothing() -> None:
    scheduler, memory = make(batch=1)
    busy = [request("busy") for _ in range(40)]
    for one in busy:
        scheduler.add(one)
    for _ in range(20):
        run_step(scheduler, memory)
    for _ in range(20):
        scheduler.add(request("back"))
    before = sum(one.done for one in busy)
    for _ in range(10):
        run_step(scheduler, memory)
    assert sum(one.done for one in busy) - before in (4, 5, 6)  # turn and turn about


def test_a_short_prompt_is_read_before_the_rest_of_another_tenant_s_long_one() -> None:
    scheduler, memory = make(budget=32, total=2000)
    long, short = request("long", prompt=900), request("short", prompt=30)
    scheduler.add(long)
    run_step(scheduler, memory)
    scheduler.add(short)
    assert steps_until_done(scheduler, memory, short) <= 3  # half of one step, then first in the next
    assert long.cached < 100


def test_a_prompt_that_gets_half_a_step_for_another_s_sake_gets_no_drafts() -> None:
    scheduler, memory = make(batch=1)
    reading = request("a", prompt=200, draft_limit=3)
    scheduler.add(reading)
    run_step(scheduler, memory)
    scheduler.add(request("b"))
    assert reading.num_pending_tokens > 1
    while reading.num_pending_tokens > 1:
        run_step(scheduler, memory)  # which asserts that only the last part of a prompt has a draft behind it


def test_whoever_has_no_place_gets_one_from_whoever_has_several() -> None:
    scheduler, memory = make(batch=3, total=100_000)
    endless = [request("crowd", output=10_000) for _ in range(6)]
    for one in endless:
        scheduler.add(one)
    run_step(scheduler, memory)
    victims = [request("a"), request("b")]
    for one in victims:
        scheduler.add(one)
    for one in victims:
        steps_until_done(scheduler, memory, one, most=PATIENCE + 6)
    assert scheduler.preemptions <= 2
    while any(one.done < 100 for one in endless[:3]):  # and nobody lost more than a place for a while
        run_step(scheduler, memory)


def test_the_only_place_of_a_tenant_is_not_taken_for_another() -> None:
    scheduler, memory = make(batch=2, total=100_000)
    running = [request("a", output=200), request("b", output=200)]
    for one in running:
        scheduler.add(one)
    run_step(scheduler, memory)
    scheduler.add(request("c"))
    while any(one.done < one.output for one in running):
        run_step(scheduler, memory)
    assert scheduler.preemptions == 0


@pytest.mark.parametrize("first", ["crowd", "alone"])
def test_who_has_most_places_loses_one_where_memory_is_short(first: str) -> None:
    scheduler, memory = make(total=40, batch=4)
    alone = request("alone", prompt=8, output=16)
    crowd = [request("crowd", prompt=8, output=16, priority=HIGHEST) for _ in range(3)]
    for one in [alone, *crowd] if first == "alone" else [*crowd, alone]:
        scheduler.add(one)
    while alone not in scheduler.running:
        run_step(scheduler, memory)
    while alone.done < alone.output:
        run_step(scheduler, memory)
        lost = alone not in scheduler.running and alone.done < alone.output
        assert not lost or len(scheduler.running) < 2
    assert scheduler.preemptions > 0


traffic = st.lists(
    st.tuples(
        st.sampled_from("abc"),
        st.integers(1, 30),  # prompt
        st.integers(1, 12),  # output
        st.sampled_from([HIGHEST, 0, 2**31 - 1]),
        st.integers(0, 10),  # arrives after this step
    ),
    min_size=1,
    max_size=14,
)


@settings(max_examples=100, deadline=None)
@given(traffic, st.integers(45, 120), st.integers(1, 4), st.integers(0, 30))
def test_all_traffic_of_several_tenants_ends(
    specs: list[tuple[str, int, int, int, int]], total: int, batch: int, spare: int
) -> None:
    scheduler, memory = make(total, batch, batch + spare)
    requests = [request(tenant, p, o, priority=priority) for tenant, p, o, priority, _ in specs]
    step = 0
    while any(one.done < one.output for one in requests):
        for one, spec in zip(requests, specs, strict=True):
            if spec[4] == step:
                scheduler.add(one)
        run_step(scheduler, memory)
        step += 1
        assert step < 3000, "no progress"
    assert memory.held == {}
