"""A simulated replica steps as the engine does."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from outrider.engine.schedule import Schedule
from outrider.engine.scheduler import Scheduler
from outrider_lab.cost import LatencyCurve
from outrider_lab.fleet_planning.costs.draft_model import SimulatedDraft
from outrider_lab.fleet_planning.costs.machine import Machine
from outrider_lab.fleet_planning.simulation.prefix_cache import PrefixCache
from outrider_lab.fleet_planning.simulation.replica import SimulatedReplica
from outrider_lab.fleet_planning.simulation.running import RequestProgress
from outrider_lab.fleet_planning.workload import Lengths, Traffic, synthesize

MACHINE = Machine(LatencyCurve({1: 1.0}), max_batch_size=6, max_batched_tokens=64, kv_tokens=4096, prefix_reuse=False)
ALWAYS_RIGHT = SimulatedDraft("oracle", (1.0,), spec_length=4)
ALWAYS_WRONG = SimulatedDraft("noise", (0.0,), spec_length=4)


@dataclass
class Asked:
    """A request as the engine's scheduler sees it."""

    number: int
    prompt: int
    output: int
    levels: int
    produced: int = 0
    cached: int = 0
    tenant: str = ""
    priority: int = 0
    tokens_of_budget: int = 1

    @property
    def id(self) -> str:
        return str(self.number)

    @property
    def num_pending_tokens(self) -> int:
        return self.prompt + self.produced - self.cached

    @property
    def draft_limit(self) -> int:
        return min(self.levels, self.output - self.produced - 1)

    def chunk(self, most: int) -> int:
        return most


class Rows:
    """Memory of a scheduler: so many rows for all."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.held: dict[int, int] = {}  # by request, those of the step included

    @property
    def free(self) -> int:
        return self.rows - sum(self.held.values())

    def has_to_wait(self, request: Asked) -> bool:
        return False

    def admit(self, request: Asked) -> bool:
        return self.free > 0

    def reserve(self, request: Asked, num_tokens: int) -> bool:
        if num_tokens > self.free:
            return False
        self.held[request.number] = self.held.get(request.number, 0) + num_tokens
        return True

    def evict(self, request: Asked) -> None:
        self.held.pop(request.number, None)
        request.cached = 0


def engine_step(scheduler: Scheduler[Asked], memory: Rows, accepts: bool) -> list[tuple[int, int, int]]:
    """The plan of one step, which is then committed: request, tokens and drafts."""
    schedule: Schedule[Asked] = scheduler.schedule()
    plan = []
    for each in schedule.scheduled:
        request = each.request
        plan.append((request.number, each.num_tokens, each.num_draft_tokens))
        kept = each.num_tokens
        if each.num_tokens == request.num_pending_tokens:
            accepted = each.num_draft_tokens if accepts else 0
            request.produced += 1 + accepted
            kept += accepted
        request.cached += kept
        memory.held[request.number] = request.cached
        if request.produced == request.output:
            scheduler.remove(request.id)
            memory.evict(request)
    return plan


@pytest.mark.parametrize("draft", [None, ALWAYS_RIGHT, ALWAYS_WRONG])
@pytest.mark.parametrize("rows", [4096, 300])
def test_steps_are_those_of_the_engines_scheduler(draft: SimulatedDraft | None, rows: int) -> None:
    traffic = Traffic(rate=1, duration=60, input_len=Lengths("uniform", 1, 150), output_len=Lengths("uniform", 1, 40))
    workload = replace(synthesize(traffic, seed=5), grows=False)
    machine = replace(MACHINE, kv_tokens=rows, block_size=1, draft=draft)
    replica = SimulatedReplica(0, machine, RequestProgress.of(workload), np.random.default_rng(0))
    memory = Rows(rows)
    scheduler: Scheduler[Asked] = Scheduler(memory, max_batch_size=6, max_batched_tokens=64)
    coming = deque(range(len(workload)))
    steps = 0
    while coming or replica.load:
        for _ in range(min(len(coming), int(steps % 7 == 0) * 3)):
            number = coming.popleft()
            replica.add(number)
            levels = 0 if draft is None else 4
            scheduler.add(Asked(number, int(workload.prompts[number]), int(workload.outputs[number]), levels))
        step = replica.begin(steps)
        expected = engine_step(scheduler, memory, accepts=draft is ALWAYS_RIGHT)
        assert (step is None) == (not expected)
        if step is not None:
            assert planned(replica, step) == expected
            replica.end(steps)
            replica.check()
        steps += 1
    assert scheduler.preemptions == replica.counts.preemptions
    assert (replica.counts.preemptions > 0) == (rows == 300)


def planned(replica: SimulatedReplica, step: Any) -> list[tuple[int, int, int]]:
    ids = replica.running.id.tolist()
    tokens = [1] * len(ids) if step.tokens is None else step.tokens.tolist()
    drafts = [0] * len(ids) if step.drafts is None else step.drafts.tolist()
    return [each for each in zip(ids, tokens, drafts, strict=True) if each[1]]


def test_a_cache_drops_the_ends_of_what_was_used_longest_ago() -> None:
    cache = PrefixCache(80, 10)
    system, first, second = ("system", 35), ("first", 22), ("second", 40)
    for talk in (first, second):
        cache.pin((system, talk))
        unread = 35 + talk[1] - cache.match((system, talk))
        assert cache.make_room(unread)
        cache.own += unread
        moved = cache.publish((system, talk))
        cache.own -= unread - moved
        cache.unpin((system, talk))
        cache.check()
    assert cache.match((system, second)) == 70  # 75 in whole blocks
    assert cache.match((system, first)) == 30  # its own part had to go
    assert cache.make_room(80)
    assert cache.match((system, second)) == 0
