"""One simulated engine: its queue, its steps, and finished requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from outrider_lab.fleet_planning.costs.machine import Machine
from outrider_lab.fleet_planning.simulation.batch import RunningBatch
from outrider_lab.fleet_planning.simulation.planner import Planner, StepPlan
from outrider_lab.fleet_planning.simulation.running import Mask, RequestProgress
from outrider_lab.fleet_planning.workload import Floats, Ints, Segment

OVERLAP = 4  # tokens that a request generates again on its next replica (``outrider_fleet.messages.remote_sequence``)

Relay = Callable[[float, int], Floats]
"""The times at which tokens of a step that ends at some time reach their clients: float64 [tokens], seconds."""


def _at_once(now: float, tokens: int) -> Floats:
    return np.full(tokens, now)


@dataclass
class ReplicaCounts:
    """Counters of a replica."""

    steps: int = 0
    busy: float = 0.0  # seconds of work at full speed
    read: int = 0  # prompt tokens computed
    reused: int = 0  # prompt tokens found in the cache
    drafted: int = 0
    accepted: int = 0
    sequences: int = 0  # requests in steps, summed over all steps
    preemptions: int = 0


@dataclass(frozen=True)
class Ended:
    """Requests that leave a batch or wait after a step."""

    done: list[int]  # answered
    handed_on: list[int]  # prompt read here, to be decoded on another replica
    drafting: list[int]  # waiting for drafts from the pool


class SimulatedReplica:
    """Waiting and running requests of one engine. ``begin`` and ``end`` enclose a step; the caller keeps the time."""

    def __init__(self, number: int, machine: Machine, progress: RequestProgress, rng: np.random.Generator) -> None:
        self.number, self.machine = number, machine
        self.name = f"r{number}"  # for the router; a restarted replica has another name
        self.alive = True
        self.only_reads = False  # a prefill replica: others decode its requests
        self._counts = ReplicaCounts()
        self._progress, self._rng = progress, rng
        self._batch = RunningBatch(machine, progress)
        self._planner = Planner(machine, self._batch, rng)
        self.running = self._batch.running
        self.load = 0  # requests running and waiting
        self.step: StepPlan | None = None

    @property
    def counts(self) -> ReplicaCounts:
        self._counts.preemptions, self._counts.reused = self._planner.preemptions, self._planner.reused
        return self._counts

    @property
    def remote_drafts(self) -> bool:
        """Whether drafts come from other machines."""
        return self._planner.remote_drafts

    @remote_drafts.setter
    def remote_drafts(self, value: bool) -> None:
        self._planner.remote_drafts = value

    def held(self) -> Iterator[Segment]:
        """The cached segments that later prompts can reuse."""
        return self._batch.cache.held()

    def add(self, request: int, *, received: bool = False) -> None:
        """Queue a request. ``received``: with the cache of all its tokens but the last."""
        self._planner.waiting.append(request)
        self.load += 1
        if received:
            self._planner.received.add(request)

    def lose_all(self) -> list[int]:
        """Clear the replica after a failure, and return its requests in order of rank."""
        running = self.running
        said = self._progress.workload.outputs[running.id] - running.left
        self._progress.produced[running.id] = np.maximum(0, said - OVERLAP)
        lost = [*running.id.tolist(), *self._planner.waiting]
        self._batch.clear()
        self._planner.clear()
        self.load, self.step = 0, None
        return lost

    def check(self) -> None:
        """Raise AssertionError unless cache and counts agree with requests and segments."""
        self._batch.check()
        if self.load != self.running.count + len(self._planner.waiting):
            raise AssertionError(f"{self.load} in all: {self.running.id} run, {self._planner.waiting} wait")

    def begin(self, now: float) -> StepPlan | None:
        """Plan a step; None if there is no work before drafts arrive from the pool."""
        self.step = self._planner.plan(now) if self.load else None
        return self.step

    def end(self, now: float, relay: Relay = _at_once) -> Ended:
        """Commit the step."""
        step, self.step = self.step, None
        assert step is not None
        running, counts, batch = self.running, self._counts, self._batch
        counts.steps += 1
        counts.busy += step.work
        counts.sequences += step.sequences
        if step.tokens is None and step.drafts is None:
            running.left[:] -= 1
            batch.grow(running.count)
            return self._leave(None, relay(now, running.count))
        emits = np.ones(running.count, np.bool_) if step.tokens is None else step.tokens == running.pending
        gained = emits.astype(np.int64)
        if step.drafts is not None:
            accepted = self._accepted(step.drafts)
            gained += accepted
            counts.drafted += int(step.drafts.sum())
            counts.accepted += int(accepted.sum())
        running.left[:] -= gained
        moved = 0
        if batch.reading and step.tokens is not None:
            read, moved = batch.read(step.tokens, emits)
            counts.read += read
        batch.grow(int(gained.sum()) + moved)
        seen = relay(now, int(np.count_nonzero(emits)))
        batch.speak(emits, seen)
        return self._leave(emits, seen)

    def drafted(self, requests: list[int], now: float) -> None:
        """Record that drafts for ``requests`` have arrived."""
        self.running.ready[np.isin(self.running.id, requests)] = now

    def _accepted(self, drafts: Ints) -> Ints:
        """Random numbers of accepted tokens, one for each draft."""
        assert self.machine.draft is not None
        depth = np.searchsorted(self.machine.draft.refusal, self._rng.random(len(drafts)))
        return np.minimum(depth, drafts)

    def _leave(self, emits: Mask | None, seen: Floats) -> Ended:
        """Remove the requests that end with this step.

        Args:
            emits: the requests with tokens in this step; None: all.
            seen: for each of those, the time at which its client has them.
        """
        running = self.running
        answered = running.left == 0
        gone = answered | emits if self.only_reads and emits is not None else answered
        drafting: list[int] = []
        if self.remote_drafts and emits is not None:
            drafting = running.id[emits & ~gone].tolist()
            running.ready[emits] = np.inf
        if not gone.any():
            return Ended([], [], drafting)
        done, handed_on = running.id[answered], running.id[gone & ~answered]
        self._progress.finished[done] = seen[answered if emits is None else answered[emits]]
        self._batch.leave(gone)
        self.load -= len(done) + len(handed_on)
        return Ended(done.tolist(), handed_on.tolist(), drafting)


@dataclass(frozen=True)
class Failures:
    """Failures without memory: their times are exponentially distributed."""

    mtbf: float | None  # seconds between two failures of a replica, on average; None: none
    restart: float  # seconds until a failed replica is back
    rng: np.random.Generator

    def next(self, now: float) -> float | None:
        """The time at which a replica that starts at ``now`` fails; None: never."""
        return None if self.mtbf is None else now + float(self.rng.exponential(self.mtbf))
