"""Who runs in a step, and with how many tokens. Plain Python: no tensors, no clock, no model.

First come, first served within a priority. One budget of tokens per step is shared, in this order, by

    1. the last token of every running request that is decoding,
    2. their drafts, as far as memory goes without taking it from others,
    3. prompts that are being read, chunk by chunk,
    4. waiting requests, admitted while places, memory and budget last,
    5. drafts behind prompts that end in this step.

So a long prompt never stalls decoding, and drafts never push out a request. If memory runs short for 1 or 3, the
request that came last among those of the lowest priority gives up its place (it is *preempted*): what it had cached is
dropped, it waits at the front of its class, and reads its tokens again when it is admitted again.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar


class Job(Protocol):
    """What the scheduler needs to know of a request."""

    @property
    def id(self) -> str: ...

    @property
    def priority(self) -> int:
        """Lower runs first."""
        ...

    @property
    def pending(self) -> int:
        """Tokens that are not in the cache yet; 1 when decoding."""
        ...

    @property
    def draft_limit(self) -> int:
        """Draft tokens the request could use in this step."""
        ...


J = TypeVar("J", bound=Job)


class Memory(Protocol[J]):  # type: ignore[misc]
    """The caches of target and draft, as the scheduler sees them."""

    def admit(self, job: J) -> bool:
        """Give the job a place and cached prefix, if there is room for it to start; whether it has one now."""
        ...

    def reserve(self, job: J, tokens: int) -> bool:
        """Set aside rows for ``tokens`` more of a running job in this step; whether they were there."""
        ...

    def evict(self, job: J) -> None:
        """Take back everything a running job holds."""
        ...


@dataclass(frozen=True)
class Slice(Generic[J]):
    """A job's part in a step: ``tokens`` of its pending ones, and up to ``drafts`` behind the last."""

    job: J
    tokens: int
    drafts: int


@dataclass(order=True)
class _Entry(Generic[J]):
    priority: int
    arrival: int
    job: J = field(compare=False)


class Scheduler(Generic[J]):
    """Waiting and running requests, and the plan of each step."""

    def __init__(self, memory: Memory[J], *, max_batch_size: int, max_batched_tokens: int) -> None:
        """``max_batched_tokens`` is at least ``max_batch_size``, so that every running request can decode."""
        self._memory = memory
        self._max_batch_size = max_batch_size
        self._max_batched_tokens = max_batched_tokens
        self._waiting: list[_Entry[J]] = []  # a heap
        self._running: list[_Entry[J]] = []  # in order of admission rank: priority, then arrival
        self._arrivals = 0
        self.preemptions = 0

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> Sequence[J]:
        return [entry.job for entry in self._running]

    def add(self, job: J) -> None:
        heapq.heappush(self._waiting, _Entry(job.priority, self._arrivals, job))
        self._arrivals += 1

    def remove(self, job_id: str) -> J | None:
        """Forget a request, waiting or running; what it holds is the caller's to release."""
        for group in (self._running, self._waiting):
            for entry in group:
                if entry.job.id == job_id:
                    group.remove(entry)
                    heapq.heapify(self._waiting)
                    return entry.job
        return None

    def schedule(self) -> list[Slice[J]]:
        """The plan of one step, in order of rank. Empty only if nothing waits and nothing runs."""
        tokens: dict[str, int] = {}
        drafts: dict[str, int] = {}
        before = self.preemptions
        left = self._max_batched_tokens
        left -= self._feed(left, tokens, lambda entry: entry.job.pending == 1)
        left -= self._grant_drafts(left, tokens, drafts)
        left -= self._feed(left, tokens, lambda entry: entry.job.pending > 1)
        if self.preemptions == before:  # what was just pushed out must not come straight back
            left -= self._admit(left, tokens)
        self._grant_drafts(left, tokens, drafts)
        return [
            Slice(entry.job, tokens[entry.job.id], drafts.get(entry.job.id, 0))
            for entry in self._running
            if entry.job.id in tokens
        ]

    def _feed(self, budget: int, tokens: dict[str, int], chosen: Callable[[_Entry[J]], bool]) -> int:
        """Give running requests their pending tokens, preempting others where memory is short; tokens spent."""
        spent = 0
        for entry in [e for e in self._running if chosen(e)]:
            count = min(entry.job.pending, budget - spent)
            if count > 0 and entry in self._running and self._make_room(entry, count, tokens):
                tokens[entry.job.id] = count
                spent += count
        return spent

    def _make_room(self, entry: _Entry[J], count: int, tokens: dict[str, int]) -> bool:
        """Reserve memory, preempting from the end of the ranks; False if the request itself had to go."""
        while not self._memory.reserve(entry.job, count):
            victim = self._running[-1]
            self._preempt(victim)
            tokens.pop(victim.job.id, None)
            if victim is entry:
                return False
        return True

    def _preempt(self, entry: _Entry[J]) -> None:
        self._running.remove(entry)
        self._memory.evict(entry.job)
        heapq.heappush(self._waiting, entry)
        self.preemptions += 1

    def _grant_drafts(self, budget: int, tokens: dict[str, int], drafts: dict[str, int]) -> int:
        """Share what is left among requests that get to their last token, a draft token each in turn; tokens spent."""
        ending = [e.job for e in self._running if tokens.get(e.job.id) == e.job.pending]
        limits = {job.id: job.draft_limit for job in ending}
        wanting = {job.id: job for job in ending if drafts.get(job.id, 0) < limits[job.id]}
        spent = 0
        while wanting and spent < budget:
            for job in list(wanting.values()):
                if spent == budget:
                    break
                if self._memory.reserve(job, 1):
                    drafts[job.id] = drafts.get(job.id, 0) + 1
                    spent += 1
                    if drafts[job.id] < limits[job.id]:
                        continue
                del wanting[job.id]
        return spent

    def _admit(self, budget: int, tokens: dict[str, int]) -> int:
        """Start waiting requests in order; the first that does not fit holds the rest, so that none is overtaken."""
        spent = 0
        while self._waiting and spent < budget and len(self._running) < self._max_batch_size:
            entry = self._waiting[0]
            if not self._memory.admit(entry.job):
                break
            heapq.heappop(self._waiting)
            count = min(entry.job.pending, budget - spent)
            if not self._memory.reserve(entry.job, count):
                self._memory.evict(entry.job)
                heapq.heappush(self._waiting, entry)
                break
            self._running.append(entry)
            self._running.sort()
            tokens[entry.job.id] = count
            spent += count
        return spent
