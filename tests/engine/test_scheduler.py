"""The scheduler against a toy memory: budgets, order, fairness, preemption, and that everything ends."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.engine.scheduler import Scheduler, Slice


@dataclass(eq=False)
class ToyJob:
    id: str
    prompt: int
    output: int
    priority: int = 0
    draft_limit: int = 0
    cached: int = 0
    done: int = 0

    @property
    def pending(self) -> int:
        return self.prompt + self.done - self.cached


@dataclass
class ToyMemory:
    """So many rows; a job's rows come back when it is evicted or released, refused drafts after each step."""

    total: int
    held: dict[str, int] = field(default_factory=dict)

    def admit(self, job: ToyJob) -> bool:
        if sum(self.held.values()) >= self.total:
            return False
        self.held[job.id] = 0
        return True

    def reserve(self, job: ToyJob, tokens: int) -> bool:
        if sum(self.held.values()) + tokens > self.total:
            return False
        self.held[job.id] += tokens
        return True

    def evict(self, job: ToyJob) -> None:
        del self.held[job.id]
        job.cached = 0


def run_step(scheduler: Scheduler[ToyJob], memory: ToyMemory, accept: int = 0) -> list[Slice[ToyJob]]:
    """One step; jobs that read their last pending token emit ``1 + min(drafts, accept)`` tokens."""
    slices = scheduler.schedule()
    for piece in slices:
        job = piece.job
        ends = piece.tokens == job.pending
        job.cached += piece.tokens
        if ends:
            kept = min(piece.drafts, accept, job.output - job.done - 1)
            job.done += 1 + kept
            job.cached += kept
        memory.held[job.id] = job.cached
        if job.done >= job.output:
            scheduler.remove(job.id)
            del memory.held[job.id]
    return slices


def make(total: int = 1000, batch: int = 4, budget: int = 32) -> tuple[Scheduler[ToyJob], ToyMemory]:
    memory = ToyMemory(total)
    return Scheduler(memory, max_batch_size=batch, max_batched_tokens=budget), memory


def test_a_long_prompt_does_not_stall_decoding() -> None:
    scheduler, memory = make()
    scheduler.add(ToyJob("short", prompt=4, output=20))
    run_step(scheduler, memory)
    scheduler.add(ToyJob("long", prompt=200, output=1))
    for _ in range(6):
        slices = run_step(scheduler, memory)
        assert {s.job.id: s.tokens for s in slices} == {"short": 1, "long": 31}


def test_short_prompts_are_read_together() -> None:
    scheduler, memory = make()
    for i in range(4):
        scheduler.add(ToyJob(str(i), prompt=8, output=2))
    assert [s.tokens for s in run_step(scheduler, memory)] == [8, 8, 8, 8]


def test_drafts_share_the_budget_evenly() -> None:
    scheduler, memory = make(budget=10)
    for i in range(3):
        scheduler.add(ToyJob(str(i), prompt=3, output=50, draft_limit=5))
    run_step(scheduler, memory)
    assert [(s.tokens, s.drafts) for s in run_step(scheduler, memory)] == [(1, 3), (1, 2), (1, 2)]


def test_drafts_never_push_out_a_request() -> None:
    scheduler, memory = make(total=12, budget=100)
    for i in range(2):
        scheduler.add(ToyJob(str(i), prompt=4, output=2, draft_limit=8))
    run_step(scheduler, memory)
    slices = run_step(scheduler, memory)
    assert sum(s.drafts for s in slices) == 2
    assert scheduler.preemptions == 0


def test_priority_then_arrival() -> None:
    scheduler, memory = make(batch=1)
    for name, priority in (("late", 1), ("first", 0), ("second", 0), ("urgent", -1)):
        scheduler.add(ToyJob(name, prompt=2, output=1, priority=priority))
    order = [run_step(scheduler, memory)[0].job.id for _ in range(4)]
    assert order == ["urgent", "first", "second", "late"]


def test_the_last_of_the_lowest_priority_is_preempted_and_comes_back_first() -> None:
    scheduler, memory = make(total=20)
    jobs = [ToyJob("a", 6, 12), ToyJob("b", 6, 12), ToyJob("c", 6, 12)]
    for job in jobs:
        scheduler.add(job)
    run_step(scheduler, memory)
    run_step(scheduler, memory)
    assert [j.id for j in scheduler.running] == ["a", "b"]
    assert scheduler.preemptions == 1
    assert jobs[2].cached == 0
    scheduler.add(ToyJob("d", 1, 1))
    order = [s.job.id for _ in range(60) for s in run_step(scheduler, memory)]
    assert order.index("c") < order.index("d")


def test_removed_jobs_are_gone_wherever_they_were() -> None:
    scheduler, memory = make(batch=1)
    running, waiting = ToyJob("r", 2, 9), ToyJob("w", 2, 9)
    scheduler.add(running)
    scheduler.add(waiting)
    run_step(scheduler, memory)
    assert scheduler.remove("w") is waiting
    assert scheduler.remove("r") is running
    assert scheduler.remove("r") is None
    assert scheduler.schedule() == []


jobs_strategy = st.lists(
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
    specs=jobs_strategy,
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
    jobs = [ToyJob(str(i), p, o, priority, k) for i, (p, o, priority, k, _) in enumerate(specs)]
    arrivals = {job.id: spec[4] for job, spec in zip(jobs, specs, strict=True)}
    step = 0
    while any(job.done < job.output for job in jobs):
        for job in jobs:
            if arrivals[job.id] == step:
                scheduler.add(job)
        decoding = {job.id for job in scheduler.running if job.pending == 1}
        before = scheduler.preemptions
        slices = run_step(scheduler, memory, accept)
        served = {s.job.id for s in slices}
        assert sum(s.tokens + s.drafts for s in slices) <= budget
        assert len(slices) == len(served) <= batch
        assert sum(memory.held.values()) <= total
        assert all(s.drafts <= s.job.draft_limit for s in slices)
        # Every request that was decoding got its token, or made room for one that ranks before it.
        assert len(decoding - served) <= scheduler.preemptions - before
        step += 1
        assert step < 2000, "no progress"
    assert scheduler.schedule() == []
    assert memory.held == {}


@pytest.mark.parametrize("accept", [0, 3])
def test_first_come_first_served_within_a_priority(accept: int) -> None:
    scheduler, memory = make(total=60, batch=3)
    for i in range(12):
        scheduler.add(ToyJob(f"{i:02}", prompt=5 + i % 7, output=4, draft_limit=i % 3))
    started: list[str] = []
    while len(started) < 12:
        for piece in run_step(scheduler, memory, accept):
            if piece.job.id not in started:
                started.append(piece.job.id)
    assert started == sorted(started)
