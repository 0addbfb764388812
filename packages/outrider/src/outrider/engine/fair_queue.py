"""The order of waiting requests: fair shares between tenants; priority and age within a tenant.

The tenant served least goes first, measured in seconds of steps. A tenant that returns starts level with the least
served of the others: absence earns nothing. This is the virtual token counter of Sheng et al. 2024, "Fairness in
serving large language models", with time instead of tokens, because a draft source may take as long for one token as
the target for a hundred.

Within a tenant, lower priority values go first, then earlier arrivals. Every ``AGED``-th place goes to the request that
has waited longest, whatever its priority. So a request with m earlier requests gets a place after at most
``AGED * (m + 1)`` others of its tenant. Plain Python, without a clock.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Generic, Protocol, TypeVar

AGED = 4  # one of this many places goes by age


class Queueable(Protocol):
    """A request, as far as the queue sees it."""

    @property
    def id(self) -> str: ...

    @property
    def tenant(self) -> str: ...

    @property
    def priority(self) -> int:
        """Lower goes first."""
        ...


R = TypeVar("R", bound=Queueable)


@dataclass(order=True)
class Entry(Generic[R]):
    """A request with its rank in its tenant: the lowest goes first, and loses its place last."""

    young: bool  # False once it got a place by age; it then keeps its rank
    priority: int
    arrival: int
    request: R = field(compare=False)
    fed: int = field(default=0, compare=False)  # the step in which it last decoded


@dataclass
class _Share(Generic[R]):
    """The queue and counts of one tenant."""

    served: float = 0.0  # seconds
    running: int = 0
    places: int = 0  # given so far
    waiting: list[Entry[R]] = field(default_factory=list)  # a heap
    oldest: Entry[R] | None = None  # the cached oldest waiting entry

    @property
    def active(self) -> bool:
        return bool(self.waiting or self.running)

    @property
    def first(self) -> Entry[R]:
        """The tenant's next entry."""
        if self.places % AGED < AGED - 1:
            return self.waiting[0]
        if self.oldest is None:
            self.oldest = min(self.waiting, key=attrgetter("arrival"))
        return self.oldest


class FairQueue(Generic[R]):
    """Waiting requests, and the time served to every tenant."""

    def __init__(self) -> None:
        self._shares: dict[str, _Share[R]] = {}
        self._arrivals = 0

    def __len__(self) -> int:
        return sum(len(share.waiting) for share in self._shares.values())

    @property
    def requests(self) -> list[R]:
        """All that wait, in no order."""
        return [entry.request for share in self._shares.values() for entry in share.waiting]

    def add(self, request: R) -> None:
        """A request arrives."""
        least = min((share.served for share in self._shares.values() if share.active), default=None)
        self._shares = {
            tenant: share
            for tenant, share in self._shares.items()
            if share.active or (least is not None and share.served > least)
        }
        share = self._shares.setdefault(request.tenant, _Share(served=least or 0.0))
        heapq.heappush(share.waiting, Entry(True, request.priority, self._arrivals, request))
        self._arrivals += 1

    def next(self) -> Entry[R] | None:
        """The entry that gets the next place; None if none waits."""
        shares = [share for share in self._shares.values() if share.waiting]
        if not shares:
            return None
        return min(shares, key=lambda share: (share.served, share.running, share.first.arrival)).first

    def take(self, entry: Entry[R]) -> None:
        """Give the next entry its place."""
        share = self._shares[entry.request.tenant]
        if entry is not share.waiting[0]:
            entry.young = False
        self._pull(share, entry)
        share.running += 1
        share.places += 1

    def set_aside(self, entry: Entry[R]) -> None:
        """Leave an entry out until it is queued again: others go first."""
        self._pull(self._shares[entry.request.tenant], entry)

    def queue(self, entry: Entry[R]) -> None:
        """Queue an entry that was set aside, at its old rank."""
        share = self._shares[entry.request.tenant]
        heapq.heappush(share.waiting, entry)
        share.oldest = None

    def put_back(self, entry: Entry[R]) -> None:
        """Return a preempted entry to the queue."""
        self.queue(entry)
        self._shares[entry.request.tenant].running -= 1

    def ended(self, entry: Entry[R]) -> None:
        """An entry with a place has ended."""
        self._shares[entry.request.tenant].running -= 1

    def charge(self, tenant: str, seconds: float) -> None:
        """Charge a tenant for the seconds that a step took for it."""
        if tenant in self._shares:
            self._shares[tenant].served += seconds

    @property
    def tenants(self) -> list[str]:
        """The tenants with waiting or running requests."""
        return [tenant for tenant, share in self._shares.items() if share.active]

    def served(self, tenant: str) -> float:
        """The seconds served to a tenant; only differences are meaningful."""
        return self._shares[tenant].served

    def has_place(self, tenant: str) -> bool:
        """Whether any request of the tenant has a place."""
        return self._shares[tenant].running > 0

    def remove(self, request_id: str) -> R | None:
        """Remove a waiting request and return it; None for an unknown id."""
        for share in self._shares.values():
            for entry in share.waiting:
                if entry.request.id == request_id:
                    self._pull(share, entry)
                    return entry.request
        return None

    @staticmethod
    def _pull(share: _Share[R], entry: Entry[R]) -> None:
        share.oldest = None
        if entry is share.waiting[0]:
            heapq.heappop(share.waiting)
        else:
            share.waiting.remove(entry)
            heapq.heapify(share.waiting)
