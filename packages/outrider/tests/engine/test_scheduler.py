"""The scheduler against a toy memory: budgets, order, fairness, preemption, and that everything ends."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.engine.schedule import Schedule, ScheduledTokens
from outrider.engine.scheduler import Scheduler

SECONDS = 1e-6  # that a token takes


@dataclass(eq=False)
class ToyRequest:
    id: str
    prompt: int
    output: int
    priority: int = 0
    draft_limit: int = 0
    cached: int = 0
    done: int = 0
    tenant: str = ""
    tokens_of_budget: int = 1

    @property
    def num_pending_tokens(self) -> int:
        return self.prompt + self.done - self.cached

    def chunk(self, most: int) -> int:
        return most


@dataclass
class ToyMemory:
    """So many rows; a request's rows come back when it is evicted or released, refused drafts after each step."""

    total: int
    held: dict[str, int] = field(default_factory=dict)
    placed: set[str] = field(default_factory=set)  # admitted and not preempted, by what schedules said

    def has_to_wait(self, request: ToyRequest) -> bool:
        return False

    def admit(self, request: ToyRequest) -> bool:
        if sum(self.held.values()) >= self.total:
            return False
        self.held[request.id] = 0
        return True

    def reserve(self, request: ToyRequest, tokens: int) -> bool:
        if sum(self.held.values()) + tokens > self.total:
            return False
        self.held[request.id] += tokens
        return True

    def evict(self, request: ToyRequest) -> None:
        del self.held[request.id]
        request.cached = 0

    def check(self, schedule: Schedule[ToyRequest]) -> None:
        """What a schedule says of those who came and went is what has happened to their rows."""
        assert not {request.id for request in schedule.preempted} & {request.id for request in schedule.admitted}
        for request in schedule.preempted:
            self.placed.remove(request.id)
        for request in schedule.admitted:
            assert request.id not in self.placed
            self.placed.add(request.id)
        assert self.placed == set(self.held)


def run_step(
    scheduler: Scheduler[ToyRequest], memory: ToyMemory, accept: int = 0, most_tokens: int | None = None
) -> list[ScheduledTokens[ToyRequest]]:
    """One step; requests that read their last pending token emit ``1 + min(drafts, accept)`` tokens."""
    schedule = scheduler.schedule(most_tokens)
    memory.check(schedule)
    for each in schedule.scheduled:
        request = each.request
        ends = each.num_tokens == request.num_pending_tokens
        assert ends or each.num_draft_tokens == 0
        request.cached += each.num_tokens
        if ends:
            kept = min(each.num_draft_tokens, accept, request.output - request.done - 1)
            request.done += 1 + kept
            request.cached += kept
        memory.held[request.id] = request.cached
        scheduler.charge(request.tenant, each.num_tokens * SECONDS)
        if request.done >= request.output:
            scheduler.remove(request.id)
            del memory.held[request.id]
            memory.placed.remove(request.id)
    return schedule.scheduled


def make(total: int = 1000, batch: int = 4, budget: int = 32) -> tuple[Scheduler[ToyRequest], ToyMemory]:
    memory = ToyMemory(total)
    return Scheduler(memory, max_batch_size=batch, max_batched_tokens=budget), memory


def test_a_long_prompt_does_not_stall_decoding() -> None:
    scheduler, memory = make()
    scheduler.add(ToyRequest("short", prompt=4, output=20))
    run_step(scheduler, memory)
    scheduler.add(ToyRequest("long", prompt=200, output=1))
    for _ in range(6):
        slices = run_step(scheduler, memory)
        assert {s.request.id: s.num_tokens for s in slices} == {"short": 1, "long": 31}


def test_tokens_that_cost_more_are_read_in_smaller_pieces() -> None:
    scheduler, memory = make()
    scheduler.add(ToyRequest("short", prompt=4, output=20))
    run_step(scheduler, memory)
    scheduler.add(ToyRequest("long", prompt=200, output=1, tokens_of_budget=4))
    for _ in range(6):
        slices = run_step(scheduler, memory)
        assert {s.request.id: s.num_tokens for s in slices} == {"short": 1, "long": 7}


def test_a_token_that_costs_more_than_the_budget_is_read_alone() -> None:
    scheduler, memory = make(budget=4)
    scheduler.add(ToyRequest("long", prompt=3, output=1, tokens_of_budget=9))
    assert [[s.num_tokens for s in run_step(scheduler, memory)] for _ in range(3)] == [[1], [1], [1]]
    assert not scheduler.running


def test_short_prompts_are_read_together() -> None:
    scheduler, memory = make()
    for i in range(4):
        scheduler.add(ToyRequest(str(i), prompt=8, output=2))
    assert [s.num_tokens for s in run_step(scheduler, memory)] == [8, 8, 8, 8]


def test_drafts_share_the_budget_evenly() -> None:
    scheduler, memory = make(budget=10)
    for i in range(3):
        scheduler.add(ToyRequest(str(i), prompt=3, output=50, draft_limit=5))
    run_step(scheduler, memory)
    assert [(s.num_tokens, s.num_draft_tokens) for s in run_step(scheduler, memory)] == [(1, 3), (1, 2), (1, 2)]


def test_drafts_never_push_out_a_request() -> None:
    scheduler, memory = make(total=12, budget=100)
    for i in range(2):
        scheduler.add(ToyRequest(str(i), prompt=4, output=2, draft_limit=8))
    run_step(scheduler, memory)
    slices = run_step(scheduler, memory)
    assert sum(s.num_draft_tokens for s in slices) == 2
    assert scheduler.preemptions == 0


def test_priority_then_arrival() -> None:
    scheduler, memory = make(batch=1)
    for name, priority in (("late", 1), ("first", 0), ("second", 0), ("urgent", -1)):
        scheduler.add(ToyRequest(name, prompt=2, output=1, priority=priority))
    order = [run_step(scheduler, memory)[0].request.id for _ in range(4)]
    assert order == ["urgent", "first", "second", "late"]


def test_the_last_of_the_lowest_priority_is_preempted_and_comes_back_first() -> None:
    scheduler, memory = make(total=20)
    requests = [ToyRequest("a", 6, 12), ToyRequest("b", 6, 12), ToyRequest("c", 6, 12)]
    for request in requests:
        scheduler.add(request)
    run_step(scheduler, memory)
    run_step(scheduler, memory)
    assert [r.id for r in scheduler.running] == ["a", "b"]
    assert scheduler.preemptions == 1
    assert requests[2].cached == 0
    scheduler.add(ToyRequest("d", 1, 1))
    order = [s.request.id for _ in range(60) for s in run_step(scheduler, memory)]
    assert order.index("c") < order.index("d")


def test_a_preempted_request_comes_back_before_those_that_came_after_it() -> None:
    scheduler, memory = make(total=20, batch=3)
    for name in "abc":
        scheduler.add(ToyRequest(name, 6, 8))
    scheduler.add(ToyRequest("d", 1, 1))  # waits for a place since before c loses its own
    run_step(scheduler, memory)
    run_step(scheduler, memory)
    assert [request.id for request in scheduler.running] == ["a", "b"]
    order = [each.request.id for _ in range(60) for each in run_step(scheduler, memory)]
    assert order.index("c") < order.index("d")


def test_a_preempted_request_does_not_come_back_in_the_same_step() -> None:
    scheduler, memory = make(total=16, batch=2, budget=4)
    a, b = ToyRequest("a", 4, 12), ToyRequest("b", 4, 12)
    scheduler.add(a)
    run_step(scheduler, memory)
    scheduler.add(b)
    while scheduler.preemptions == 0:
        slices = run_step(scheduler, memory)
    # There are rows and tokens enough to begin with b again, and it would lose its place again.
    assert [(each.request.id, each.num_tokens) for each in slices] == [("a", 1)]
    assert scheduler.running == [a]
    assert memory.total - sum(memory.held.values()) >= 4


def test_no_drafts_behind_a_prompt_that_does_not_end_in_the_step() -> None:
    scheduler, memory = make(budget=8)
    scheduler.add(ToyRequest("long", prompt=20, output=5, draft_limit=5))
    slices = [run_step(scheduler, memory)[0] for _ in range(4)]
    assert [(each.num_tokens, each.num_draft_tokens) for each in slices] == [(8, 0), (8, 0), (4, 4), (1, 5)]


def test_a_request_that_does_not_fit_holds_nothing_while_it_waits() -> None:
    scheduler, memory = make(total=12)
    scheduler.add(ToyRequest("a", prompt=8, output=3))
    scheduler.add(ToyRequest("b", prompt=8, output=3))
    assert [each.request.id for each in run_step(scheduler, memory)] == ["a"]
    assert memory.held == {"a": 8}
    assert scheduler.waiting == 1


def test_removed_requests_are_gone_wherever_they_were() -> None:
    scheduler, memory = make(batch=1)
    running, waiting = ToyRequest("r", 2, 9), ToyRequest("w", 2, 9)
    scheduler.add(running)
    scheduler.add(waiting)
    run_step(scheduler, memory)
    assert scheduler.remove("w") is waiting
    assert scheduler.remove("r") is running
    assert scheduler.remove("r") is None
    assert scheduler.schedule().scheduled == []


traffic = st.lists(
    st.tuples(
        st.integers(1, 30),  # prompt
        st.integers(1, 12),  # output
        st.integers(-1, 1),  # priority
        st.integers(0, 6),  # draft limit
        st.integers(0, 10),  # arrives after this step
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=150, deadline=None)
@given(
    specs=traffic,
    total=st.integers(45, 120),
    batch=st.integers(1, 5),
    spare=st.integers(0, 40),
    accept=st.integers(0, 4),
)
def test_the_laws_hold_for_any_traffic(
    specs: list[tuple[int, int, int, int, int]], total: int, batch: int, spare: int, accept: int
) -> None:
    budget = batch + spare
    scheduler, memory = make(total, batch, budget)
    requests = [ToyRequest(str(i), p, o, priority, k) for i, (p, o, priority, k, _) in enumerate(specs)]
    arrivals = {request.id: spec[4] for request, spec in zip(requests, specs, strict=True)}
    step = 0
    while any(request.done < request.output for request in requests):
        for request in requests:
            if arrivals[request.id] == step:
                scheduler.add(request)
        decoding = {request.id for request in scheduler.running if request.num_pending_tokens == 1}
        before = scheduler.preemptions
        slices = run_step(scheduler, memory, accept)
        served = {s.request.id for s in slices}
        assert sum(s.num_tokens + s.num_draft_tokens for s in slices) <= budget
        assert len(slices) == len(served) <= batch
        assert sum(memory.held.values()) <= total
        assert all(s.num_draft_tokens <= s.request.draft_limit for s in slices)
        # Every request that was decoding got its token, or made room for one that ranks before it.
        assert len(decoding - served) <= scheduler.preemptions - before
        step += 1
        assert step < 2000, "no progress"
    assert scheduler.schedule().scheduled == []
    assert memory.held == {}


@pytest.mark.parametrize("accept", [0, 3])
def test_first_come_first_served_within_a_priority(accept: int) -> None:
    scheduler, memory = make(total=60, batch=3)
    for i in range(12):
        scheduler.add(ToyRequest(f"{i:02}", prompt=5 + i % 7, output=4, draft_limit=i % 3))
    started: list[str] = []
    while len(started) < 12:
        for each in run_step(scheduler, memory, accept):
            if each.request.id not in started:
                started.append(each.request.id)
    assert started == sorted(started)
