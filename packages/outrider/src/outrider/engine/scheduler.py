"""Who runs in a step, and with how many tokens. Plain Python: no tensors, no clock, no model.

Who comes first: ``fair_queue``. One budget of tokens per step is shared, in this order, by

    1. the last token of every running request that is decoding,
    2. their drafts, as far as memory goes without taking it from others,
    3. prompts that are being read, chunk by chunk,
    4. waiting requests, admitted while places, memory and budget last,
    5. drafts behind prompts that end in this step.

So a long prompt never stalls decoding, and drafts never push out a request. If memory runs short for 1 or 3, a request
gives up its place (it is *preempted*): what it had cached is dropped, it waits at the front of its class, and reads its
tokens again when it is admitted again. It is the last in rank. First in rank are the first of every tenant, then their
second ones, and so on: the tenant with most requests gives up one. Among the requests of one tenant it is the latest of
the lowest priority.

A tenant without any place does not wait for others to end. Prompts that are being read leave half of the budget for
it, and after ``PATIENCE`` steps, or as many seconds, a tenant that has several places gives up one.

Where several tenants share the machine, the budget is also what fits into the time of a step (``engine.pace``). Drafts
then leave half of what remains to prompts. It may be too small for all that decode: who is left out goes before the
others of its tenant in the next step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from outrider.engine.fair_queue import Entry, FairQueue, Queueable

PATIENCE = 32  # steps that a tenant without a place waits: rare enough that reading again is cheap
PATIENCE_SECONDS = 2.0  # likewise, where steps are long


class Schedulable(Queueable, Protocol):
    """What the scheduler needs to know of a request."""

    @property
    def num_pending_tokens(self) -> int:
        """Tokens that are not in the cache yet; 1 when decoding."""
        ...

    @property
    def tokens_of_budget(self) -> int:
        """What each pending token takes of a step's budget of tokens: 1, or more where it costs more."""
        ...

    @property
    def draft_limit(self) -> int:
        """Draft tokens the request could use in this step."""
        ...


R = TypeVar("R", bound=Schedulable)


class Memory(Protocol[R]):  # type: ignore[misc]
    """The caches of target and draft, as the scheduler sees them."""

    def admit(self, request: R) -> bool:
        """Give the request a place and cached prefix, if there is room for it to start; whether it has one now."""
        ...

    def reserve(self, request: R, num_tokens: int) -> bool:
        """Set aside rows for ``num_tokens`` more of a running request in this step; whether they were there."""
        ...

    def evict(self, request: R) -> None:
        """Take back everything a running request holds."""
        ...


@dataclass(frozen=True)
class ScheduledTokens(Generic[R]):
    """A request's part in a step: ``num_tokens`` of its pending ones, and a draft of ``num_draft_tokens`` at most."""

    request: R
    num_tokens: int
    num_draft_tokens: int


@dataclass(frozen=True)
class Schedule(Generic[R]):
    """The plan of one step, and who has come and gone for it. It is empty only if nothing waits and nothing runs."""

    scheduled: list[ScheduledTokens[R]]  # in order of rank
    admitted: list[R]  # given a place in this step
    preempted: list[R]  # that lost their place in this step, and wait again; none of them is admitted


@dataclass
class _Plan(Generic[R]):
    """A schedule in the making."""

    budget: int  # tokens left
    tokens: dict[str, int] = field(default_factory=dict)  # pending ones, by request
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
        self._steps_without_place = 0  # of the tenant that is next, while it has none
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
    def tenants(self) -> list[str]:
        """Those with requests that wait or run."""
        return self._waiting.tenants

    def add(self, request: R) -> None:
        self._waiting.add(request)

    def charge(self, tenant: str, seconds: float) -> None:
        """A step has taken so long for a tenant."""
        self._waiting.charge(tenant, seconds)
        self._seconds_without_place += seconds

    def remove(self, request_id: str) -> R | None:
        """Forget a request, waiting or running; what it holds is the caller's to release."""
        for entry in self._running:
            if entry.request.id == request_id:
                self._waiting.ended(entry)
                self._running.remove(entry)
                self._rank()
                return entry.request
        return self._waiting.remove(request_id)

    def schedule(self, most_tokens: int | None = None) -> Schedule[R]:
        """The plan of one step; ``most_tokens``: that it has time for, if that is limited."""
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
        kept = plan.budget // 2 if limited and (reading or self.waiting) else 0  # or drafts would take all there is
        plan.budget -= kept
        self._grant_drafts(plan)
        plan.budget += kept
        self._feed(plan, reading, max(1, plan.budget // 2) if waits and plan.budget else plan.budget)
        if not plan.preempted:  # what was just pushed out must not come straight back
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
        """Take a place from the tenant with most of them, for one that has had none for long."""
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
        """Give running requests their pending tokens, preempting others where memory is short.

        Tenants that were served less go first, so that short prompts need not wait behind another's long one.
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
        """Reserve memory, preempting from the end of the ranks; False if the request itself had to go."""
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
        """Share what is left among requests that get to their last token, a draft token each in turn."""
        drafts, budget = plan.drafts, plan.budget
        wanting: list[tuple[R, int]] = []  # and how many more
        for entry in self._running:
            request = entry.request
            if plan.tokens.get(request.id) == request.num_pending_tokens:
                more = request.draft_limit - drafts.get(request.id, 0)
                if more > 0:
                    wanting.append((request, more))
        while wanting and budget > 0:
            turns = max(1, min(budget // len(wanting), *(more for _, more in wanting)))  # at once
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
        """How many tokens short of ``most`` there was room for."""
        return next((count for count in range(most) if not self._memory.reserve(request, 1)), most)

    def _admit(self, plan: _Plan[R]) -> None:
        """Start waiting requests in order; the first that does not fit holds the rest, so that none is overtaken."""
        while plan.budget > 0 and len(self._running) < self._max_batch_size:
            entry = self._waiting.next()
            if entry is None or not self._memory.admit(entry.request):
                break
            count = _affordable(entry.request, plan.budget)
            if not self._memory.reserve(entry.request, count):
                self._memory.evict(entry.request)
                break
            self._waiting.take(entry)
            self._running.append(entry)
            self._rank()
            plan.tokens[entry.request.id] = count
            plan.admitted.append(entry.request)
            plan.budget -= count * entry.request.tokens_of_budget


def _affordable(request: Schedulable, budget: int) -> int:
    """How many of its pending tokens a budget lets a request have: one at least, if any is left."""
    return min(request.num_pending_tokens, max(min(1, budget), budget // request.tokens_of_budget))
