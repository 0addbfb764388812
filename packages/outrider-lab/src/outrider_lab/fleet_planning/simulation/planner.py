"""Plans the tokens of simulated steps, as ``engine.scheduler`` does for the requests of one tenant.

Decoding requests come first, then their drafts, then prompts chunk by chunk, then waiting requests, then drafts after
prompts that end in the step. A step takes a few operations on arrays, for any number of requests.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from outrider_lab.fleet_planning.costs.machine import Machine
from outrider_lab.fleet_planning.simulation.batch import RunningBatch
from outrider_lab.fleet_planning.simulation.running import Mask, share_budget
from outrider_lab.fleet_planning.workload import Ints


@dataclass(frozen=True)
class StepPlan:
    """One step's plan; arrays are [running requests]."""

    work: float  # seconds at full speed
    sequences: int
    tokens: Ints | None  # pending tokens to compute; None: each request decodes
    drafts: Ints | None  # draft tokens; None: no drafts


class Planner:
    """Plans steps of a batch, and keeps the requests that wait for a place in it."""

    def __init__(self, machine: Machine, batch: RunningBatch, rng: np.random.Generator) -> None:
        self._machine, self._batch, self._rng = machine, batch, rng
        self.remote_drafts = False
        self.preemptions = 0
        self.reused = 0  # prompt tokens found in the cache
        self.clear()

    def clear(self) -> None:
        """Remove all waiting requests."""
        self.waiting: deque[int] = deque()
        self.received: set[int] = set()  # waiting requests whose cache another replica sent

    def plan(self, now: float) -> StepPlan | None:
        """The next step; None if there is no work before drafts arrive from the pool."""
        batch, before = self._batch, self.preemptions
        while not batch.cache.make_room(batch.running.count - batch.reading):
            self._preempt()
        full = not self.waiting or batch.running.count == self._machine.max_batch_size
        if full and not batch.reading and self._machine.draft is None:
            n = batch.running.count
            return StepPlan(self._machine.step_seconds(n, n, batch.context), n, None, None)
        return self._mixed(now, before)

    def _mixed(self, now: float, preemptions: int) -> StepPlan | None:
        """A step with prompts, drafts or new requests. ``preemptions``: their number before this step."""
        decoding = self._decoding(now)
        tokens: Ints = decoding.astype(np.int64)
        drafts = self._drafts(decoding, int(np.count_nonzero(decoding)))
        again = self._batch.reading > 0
        if self._batch.reading:
            tokens, drafts = self._read(tokens, drafts)
        if self.waiting and self.preemptions == preemptions:  # a preempted request must not return in the same step
            added = self._admit(int(tokens.sum() + drafts.sum()))
            tokens, drafts = np.append(tokens, added), np.append(drafts, np.zeros_like(added))
            again = again or len(added) > 0
        if again and self._machine.draft is not None:
            ends = tokens == self._batch.running.pending
            drafts = drafts + self._drafts(ends, int(tokens.sum() + drafts.sum()), drafts)
        if not tokens.any():
            return None
        drafted = drafts if drafts.any() else None
        return StepPlan(self._work(tokens, drafts), int(np.count_nonzero(tokens)), tokens, drafted)

    def _decoding(self, now: float) -> Mask:
        """For each running request, whether it decodes in this step.

        With a draft pool at most half of them do, so that the drafts of the others arrive meanwhile.
        """
        running = self._batch.running
        decoding: Mask = running.pending == 1
        if not self.remote_drafts:
            return decoding
        ready = np.flatnonzero(decoding & (running.ready <= now))
        half = (int(np.count_nonzero(decoding)) + 1) // 2
        chosen = np.zeros_like(decoding)
        chosen[ready[np.argsort(running.ready[ready], kind="stable")[:half]]] = True
        return chosen

    def _drafts(self, asking: Mask, taken: int, given: Ints | None = None) -> Ints:
        """Draft tokens besides ``given`` ones, within the budget and memory left after ``taken`` tokens."""
        draft, length = self._machine.draft, self._machine.draft_lengths[int(np.count_nonzero(asking))]
        if draft is None or not length:
            return np.zeros(len(asking), np.int64)
        running, cache = self._batch.running, self._batch.cache
        wanted = np.where(asking, np.minimum(length, running.left - 1), 0)
        if draft.share < 1:
            silent = self._rng.random(len(wanted)) >= draft.share
            wanted[silent if given is None else (given == 0) & (silent | (running.pending == 1))] = 0
        if given is not None:
            wanted -= np.minimum(given, wanted)
        cache.make_room(taken + int(wanted.sum()))
        return share_budget(wanted, self._machine.max_batched_tokens - taken, cache.free - taken)

    def _read(self, tokens: Ints, drafts: Ints) -> tuple[Ints, Ints]:
        """Give chunks to prompts that are being read, by rank; preempt other requests if memory is short."""
        running, cache = self._batch.running, self._batch.cache
        budget = self._machine.max_batched_tokens - int(tokens.sum() + drafts.sum())
        for place in np.flatnonzero(running.pending > 1).tolist():
            if place >= running.count:
                break
            chunk = min(int(running.pending[place]), budget)
            while not cache.make_room(int(tokens.sum() + drafts.sum()) + chunk) and place < running.count:
                self._preempt()
                tokens, drafts = tokens[: running.count], drafts[: running.count]
            if place < running.count:
                tokens[place] = chunk
                budget -= chunk
        return tokens, drafts

    def _admit(self, taken: int) -> Ints:
        """Start waiting requests in order while places, memory and budget last; return their chunks."""
        chunks: list[int] = []
        while self.waiting and taken < self._machine.max_batched_tokens:
            if self._batch.running.count == self._machine.max_batch_size:
                break
            request = self.waiting[0]
            entered = self._batch.enter(request, received=request in self.received, taken=taken)
            if entered is None:
                break
            self.waiting.popleft()
            self.received.discard(request)
            chunk, shared = entered
            self.reused += shared
            chunks.append(chunk)
            taken += chunk
        return np.array(chunks, dtype=np.int64)

    def _preempt(self) -> None:
        """Move the request of the last rank to the front of the waiting ones."""
        self.waiting.appendleft(self._batch.push_out())
        self.preemptions += 1

    def _work(self, tokens: Ints, drafts: Ints) -> float:
        """Seconds of a step."""
        active, running = tokens > 0, self._batch.running
        drafted = int(drafts.sum())
        rows, context = int(tokens.sum()) + drafted, float(running.context[active].sum())
        silent = int((tokens - (tokens == running.pending))[active].sum())
        work = self._machine.step_seconds(rows, int(np.count_nonzero(active)), context, silent)
        if drafted and not self.remote_drafts and self._machine.draft is not None:
            drafting = int(np.count_nonzero(drafts))
            work += drafted / drafting * self._machine.draft.level_seconds(drafting)
        return work
