"""Chooses the requests of a step and their numbers of tokens. Plain Python: no tensors, no clock, no model.

``fair_queue`` orders waiting requests. One budget of tokens per step is shared, in this order, by

    1. the last token of every running request that is decoding,
    2. their drafts, as far as free memory lasts,
    3. prompts that are being read, chunk by chunk,
    4. waiting requests, admitted while places, memory and budget last,
    5. drafts after prompts that end in this step.

So a long prompt never stalls decoding, and drafts never preempt a request. If memory runs short for 1 or 3, the
request with the lowest rank is *preempted*: its cached rows are dropped, it waits at the front of its class, and reads
its tokens again after its next admission. The first request of every tenant ranks before every tenant's second
request, and so on, so the tenant with most requests gives up a place. Within a tenant, the latest request of the lowest
priority ranks last.

A tenant without a place does not wait for other requests to end. Prompts that are being read leave half of the budget
to it. After ``PATIENCE`` steps or ``PATIENCE_SECONDS``, a tenant with several places gives up one.

If several tenants share the machine, the time of a step also limits the budget (``engine.pace``). Drafts then leave
half of the rest to prompts. The budget may be too small for all decoding requests: a request that is left out goes
before its tenant's others in the next step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic

from outrider.engine.fair_queue import Entry, FairQueue
from outrider.engine.schedule import Memory, R, Schedulable, Schedule, ScheduledTokens

PATIENCE = 32  # steps that a tenant without a place waits: preemption so rare costs little
PATIENCE_SECONDS = 2.0  # the same in seconds, for long steps


@dataclass
class _Plan(Generic[R]):
    """A schedule under construction."""

    budget: int  # tokens left
    tokens: dict[str, int] = field(default_factory=dict)  # pending tokens granted, by request id
    drafts: dict[str, int] = field(default_factory=dict)
    admitted: list[R] = field(default_factory=list)
    preempted: list[R] = field(default_factory=list)


class Scheduler(Generic[R]):
    """Waiting and running requests, and the plan of each step."""

    def __init__(self, memory: Memory[R], *, max_batch_size: int, max_batched_tokens: int) -> None:
        """``max_batched_tokens`` is at least ``max_batch_size``, so that every running request can decode."""
        self._memory = memory
        self._max_batch_size = max_batch_size
        self._max_batched_tokens = max_batched_tokens
        self._waiting: FairQueue[R] = FairQueue()
        self._running: list[Entry[R]] = []  # in order of rank
        self._steps_without_place = 0  # of the next tenant, while it has no place
        self._seconds_without_place = 0.0
        self._steps = 0
        self.preemptions = 0

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> Sequence[R]:
        return [entry.request for entry in self._running]

    @property
    def requests(self) -> list[R]:
        """All that run or wait."""
        return [*self.running, *self._waiting.requests]

    @property
    def tenants(self) -> list[str]:
        """The tenants with waiting or running requests."""
        return self._waiting.tenants

    def add(self, request: R) -> None:
        self._waiting.add(request)

    def charge(self, tenant: str, seconds: float) -> None:
        """Charge a tenant for the seconds that a step took for it."""
        self._waiting.charge(tenant, seconds)
        self._seconds_without_place += seconds

    def remove(self, request_id: str) -> R | None:
        """Remove a waiting or running request and return it; the caller releases its resources."""
        for entry in self._running:
            if entry.request.id == request_id:
                self._waiting.ended(entry)
                self._running.remove(entry)
                self._rank()
                return entry.request
        return self._waiting.remove(request_id)

    def schedule(self, most_tokens: int | None = None) -> Schedule[R]:
        """The plan of one step. ``most_tokens``: the tokens that the step has time for; None: no limit."""
        limited = most_tokens is not None and most_tokens < self._max_batched_tokens
        plan: _Plan[R] = _Plan(most_tokens if limited and most_tokens else self._max_batched_tokens)
        self._steps += 1
        self._make_way(plan)
        decoding = [entry for entry in self._running if entry.request.num_pending_tokens == 1]
        reading = [entry for entry in self._running if entry.request.num_pending_tokens > 1]
        decoding.sort(key=lambda entry: entry.fed)
        waits = self._steps_without_place > 0
        self._feed(plan, decoding, plan.budget - (plan.budget // 4 if limited and waits else 0))
        for entry in decoding:
            if entry.request.id in plan.tokens:
                entry.fed = self._steps
        kept = plan.budget // 2 if limited and (reading or self.waiting) else 0  # or drafts would take the whole rest
        plan.budget -= kept
        self._grant_drafts(plan)
        plan.budget += kept
        self._feed(plan, reading, max(1, plan.budget // 2) if waits and plan.budget else plan.budget)
        if not plan.preempted:  # a preempted request must not return at once
            self._admit(plan)
        if reading or plan.admitted or kept:
            self._grant_drafts(plan)
        scheduled = [
            ScheduledTokens(entry.request, plan.tokens[entry.request.id], plan.drafts.get(entry.request.id, 0))
            for entry in self._running
            if entry.request.id in plan.tokens
        ]
        return Schedule(scheduled, plan.admitted, plan.preempted)

    def _make_way(self, plan: _Plan[R]) -> None:
        """Preempt a request of the tenant with most places, for a tenant that has waited too long without one."""
        entry = self._waiting.next()
        if entry is None or self._waiting.has_place(entry.request.tenant):
            self._steps_without_place, self._seconds_without_place = 0, 0.0
            return
        self._steps_without_place += 1
        if self._steps_without_place == 1:
            self._seconds_without_place = 0.0
        waited = self._steps_without_place > PATIENCE or self._seconds_without_place > PATIENCE_SECONDS
        if waited and self._running:
            last = self._running[-1]
            if last.request.tenant in (other.request.tenant for other in self._running[:-1]):
                self._preempt(last, plan)

    def _rank(self) -> None:
        """Sort the running requests: the first of every tenant, the second of every tenant, ..."""
        seen: Counter[str] = Counter()
        places: dict[str, int] = {}
        for entry in sorted(self._running):
            places[entry.request.id] = seen[entry.request.tenant]
            seen[entry.request.tenant] += 1
        self._running.sort(key=lambda entry: (places[entry.request.id], entry.arrival))

    def _feed(self, plan: _Plan[R], entries: Sequence[Entry[R]], budget: int) -> None:
        """Give running requests their pending tokens, preempting other requests if memory is short.

        Tenants that were served less go first, so that short prompts need not wait for another tenant's long prompt.
        """
        spent = 0
        for entry in sorted(entries, key=lambda entry: self._waiting.served(entry.request.tenant)):
            count = _affordable(entry.request, budget - spent)
            gone = bool(plan.preempted) and entry not in self._running
            if count > 0 and not gone and self._make_room(entry, count, plan):
                plan.tokens[entry.request.id] = count
                spent += count * entry.request.tokens_of_budget
        plan.budget -= spent

    def _make_room(self, entry: Entry[R], count: int, plan: _Plan[R]) -> bool:
        """Reserve memory, preempting from the lowest rank; False if the request itself was preempted."""
        while not self._memory.reserve(entry.request, count):
            victim = self._running[-1]
            self._preempt(victim, plan)
            if victim is entry:
                return False
        return True

    def _preempt(self, entry: Entry[R], plan: _Plan[R]) -> None:
        self._running.remove(entry)
        self._memory.evict(entry.request)
        self._waiting.put_back(entry)
        self._rank()
        plan.tokens.pop(entry.request.id, None)
        plan.preempted.append(entry.request)
        self.preemptions += 1

    def _grant_drafts(self, plan: _Plan[R]) -> None:
        """Share the rest of the budget in turns of one draft token among requests that reach their last token."""
        drafts, budget = plan.drafts, plan.budget
        wanting: list[tuple[R, int]] = []  # requests, with the draft tokens that they can still use
        for entry in self._running:
            request = entry.request
            if plan.tokens.get(request.id) == request.num_pending_tokens:
                more = request.draft_limit - drafts.get(request.id, 0)
                if more > 0:
                    wanting.append((request, more))
        while wanting and budget > 0:
            turns = max(1, min(budget // len(wanting), *(more for _, more in wanting)))  # several turns at once
            still: list[tuple[R, int]] = []
            for request, more in wanting[:budget]:
                taken = turns if self._memory.reserve(request, turns) else self._reserve_singly(request, turns)
                drafts[request.id] = drafts.get(request.id, 0) + taken
                budget -= taken
                if taken == turns < more:
                    still.append((request, more - taken))
            wanting = still
        plan.budget = budget

    def _reserve_singly(self, request: R, most: int) -> int:
        """Reserve rows one by one, up to ``most``; returns how many were free."""
        return next((count for count in range(most) if not self._memory.reserve(request, 1)), most)

    def _admit(self, plan: _Plan[R]) -> None:
        """Start waiting requests in order; the first request that does not fit blocks the rest (no overtaking).

        Those that wait for what another one reads block nobody, as many as could run at once.
        """
        aside = list[Entry[R]]()
        while plan.budget > 0 and len(self._running) < self._max_batch_size:
            entry = self._waiting.next()
            if entry is None:
                break
            if self._memory.has_to_wait(entry.request):
                if len(aside) == self._max_batch_size:
                    break
                self._waiting.set_aside(entry)
                aside.append(entry)
                continue
            if not self._memory.admit(entry.request):
                break
            count = _affordable(entry.request, plan.budget)
            if not self._memory.reserve(entry.request, count):
                self._memory.evict(entry.request)
                break
            self._waiting.take(entry)
            self._running.append(entry)
            self._rank()
            if count:
                plan.tokens[entry.request.id] = count
            plan.admitted.append(entry.request)
            plan.budget -= count * entry.request.tokens_of_budget
        for entry in aside:
            self._waiting.queue(entry)


def _affordable(request: Schedulable, budget: int) -> int:
    """The number of pending tokens that a budget allows: at least one, unless the budget is 0."""
    count = min(request.num_pending_tokens, max(min(1, budget), budget // request.tokens_of_budget))
    return request.chunk(count) if count else 0
