"""What is learned from requests, apart for each domain, within one limit of bytes for all of them.

A *domain* is who may learn from whom: requests of one domain share what they have said, and no others hear of it. A
*tenant* is whose memory that takes: it may have any number of domains. Both are opaque strings.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

DOMAIN_BYTES = 1024  # that a domain takes besides its contents, as a round number


class Store(Protocol):
    """What one domain has learned."""

    @property
    def size(self) -> int:
        """Bytes it takes, about; 0 only where nothing is left to forget."""
        ...

    def forget(self) -> None:
        """Drop what was least recently used; afterwards ``size`` is smaller."""
        ...


S = TypeVar("S", bound=Store)


@dataclass(eq=False)
class _Tenant(Generic[S]):
    size: int = 0
    held: OrderedDict[str, Lease[S]] = field(default_factory=OrderedDict)  # not empty; least recently used first


class Lease(Generic[S]):
    """A domain's store, in the hands of the requests that use it: look it up once, then keep it."""

    def __init__(self, domain: str, tenant: str, store: S) -> None:
        self.domain, self.tenant, self.store = domain, tenant, store
        self.users = 0
        self.size = 0  # as it is accounted for


class Domains(Generic[S]):
    """The stores of all domains.

    Beyond the limit the tenant that holds most forgets first, the least recently used of its domains before the
    others. So a tenant with many domains, or with much to say, costs the others nothing below their equal share. A
    store that a request still uses is emptied at worst, never taken away.
    """

    def __init__(self, make: Callable[[], S], capacity: int) -> None:
        """``capacity``: bytes of all stores together."""
        self._make, self._capacity = make, capacity
        self._leases: dict[str, Lease[S]] = {}  # in use, or not empty
        self._tenants: dict[str, _Tenant[S]] = {}  # that hold anything
        self.size = 0

    def fits(self, size: int) -> bool:
        """Whether so many bytes are not too many even for a store that has everything to itself."""
        return size + DOMAIN_BYTES <= self._capacity

    def open(self, domain: str, tenant: str = "") -> Lease[S]:
        """The store of ``domain``, new if there is none. It is charged to the tenant that came first."""
        lease = self._leases.get(domain)
        if lease is None:
            lease = self._leases[domain] = Lease(domain, tenant, self._make())
        lease.users += 1
        if lease.size:
            self._tenants[lease.tenant].held.move_to_end(domain)
        return lease

    def close(self, lease: Lease[S]) -> None:
        """A request has finished with its store; call it once for each ``open``."""
        lease.users -= 1
        self.settle(lease)
        self._drop_if_unused(lease)

    def settle(self, lease: Lease[S]) -> None:
        """Account for what a store has learned, and forget what is too much."""
        self._account(lease)
        while self.size > self._capacity:
            largest = max(self._tenants.values(), key=lambda tenant: tenant.size)
            oldest = next(iter(largest.held.values()))
            oldest.store.forget()
            self._account(oldest, used=False)
            self._drop_if_unused(oldest)

    def sizes(self) -> dict[str, int]:
        """Bytes by domain, of those that hold anything."""
        return {lease.domain: lease.size for lease in list(self._leases.values()) if lease.size}

    def __len__(self) -> int:
        """Domains in use, or not empty."""
        return len(self._leases)

    def _account(self, lease: Lease[S], *, used: bool = True) -> None:
        content = lease.store.size
        size = content + DOMAIN_BYTES if content else 0
        if size != lease.size:
            self._resize(lease, size)
        if used and size:
            self._tenants[lease.tenant].held.move_to_end(lease.domain)

    def _resize(self, lease: Lease[S], size: int) -> None:
        tenant = self._tenants.setdefault(lease.tenant, _Tenant())
        self.size += size - lease.size
        tenant.size += size - lease.size
        lease.size = size
        if size:
            tenant.held[lease.domain] = lease
        else:
            tenant.held.pop(lease.domain, None)
            if not tenant.held:
                del self._tenants[lease.tenant]

    def _drop_if_unused(self, lease: Lease[S]) -> None:
        if lease.users == 0 and lease.size == 0:
            self._leases.pop(lease.domain, None)
