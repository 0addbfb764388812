"""Data learned from requests, partitioned by domain, with one byte limit for all domains.

Requests of one *domain* learn from each other, and from no other domain. A *tenant* owns the memory of any number of
domains. Both are opaque strings.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

DOMAIN_BYTES = 1024  # approximate overhead of a domain besides its contents


class Store(Protocol):
    """The learned data of one domain."""

    @property
    def size(self) -> int:
        """Its approximate size in bytes; 0 only if nothing is left to evict."""
        ...

    def evict(self) -> None:
        """Drop the least recently used data; afterwards ``size`` is smaller."""
        ...


S = TypeVar("S", bound=Store)


@dataclass(eq=False)
class _Tenant(Generic[S]):
    size: int = 0
    held: OrderedDict[str, Handle[S]] = field(default_factory=OrderedDict)  # not empty; least recently used first


class Handle(Generic[S]):
    """A domain's store while requests use it; a request looks it up once and keeps the handle."""

    def __init__(self, domain: str, tenant: str, store: S) -> None:
        self.domain, self.tenant, self.store = domain, tenant, store
        self.users = 0
        self.size = 0  # bytes accounted for


class PartitionedStore(Generic[S]):
    """The stores of all domains.

    Beyond the limit, the largest tenant's least recently used domain is evicted first. So a tenant with many domains or
    long texts never pushes another below an equal share. A store that a request still uses may be emptied, but is never
    removed.
    """

    def __init__(self, make: Callable[[], S], capacity: int) -> None:
        """``capacity``: the byte limit for all stores together."""
        self._make, self._capacity = make, capacity
        self._handles: dict[str, Handle[S]] = {}  # in use, or not empty
        self._tenants: dict[str, _Tenant[S]] = {}  # with data
        self.size = 0

    def fits(self, size: int) -> bool:
        """Whether ``size`` bytes fit into the capacity, if all other stores are evicted."""
        return size + DOMAIN_BYTES <= self._capacity

    def open(self, domain: str, tenant: str = "") -> Handle[S]:
        """The store of ``domain``, created if missing. Its memory counts for the tenant that opened it first."""
        handle = self._handles.get(domain)
        if handle is None:
            handle = self._handles[domain] = Handle(domain, tenant, self._make())
        handle.users += 1
        if handle.size:
            self._tenants[handle.tenant].held.move_to_end(domain)
        return handle

    def close(self, handle: Handle[S]) -> None:
        """Release a store; call it once for each ``open``."""
        handle.users -= 1
        self.settle(handle)
        self._drop_if_unused(handle)

    def settle(self, handle: Handle[S]) -> None:
        """Update the accounted size of a store, and evict data beyond the capacity."""
        self._account(handle)
        while self.size > self._capacity:
            largest = max(self._tenants.values(), key=lambda tenant: tenant.size)
            oldest = next(iter(largest.held.values()))
            oldest.store.evict()
            self._account(oldest, used=False)
            self._drop_if_unused(oldest)

    def sizes(self) -> dict[str, int]:
        """Bytes by domain, without empty domains."""
        return {handle.domain: handle.size for handle in list(self._handles.values()) if handle.size}

    def __len__(self) -> int:
        """The number of domains in use or not empty."""
        return len(self._handles)

    def _account(self, handle: Handle[S], *, used: bool = True) -> None:
        content = handle.store.size
        size = content + DOMAIN_BYTES if content else 0
        if size != handle.size:
            self._resize(handle, size)
        if used and size:
            self._tenants[handle.tenant].held.move_to_end(handle.domain)

    def _resize(self, handle: Handle[S], size: int) -> None:
        tenant = self._tenants.setdefault(handle.tenant, _Tenant())
        self.size += size - handle.size
        tenant.size += size - handle.size
        handle.size = size
        if size:
            tenant.held[handle.domain] = handle
        else:
            tenant.held.pop(handle.domain, None)
            if not tenant.held:
                del self._tenants[handle.tenant]

    def _drop_if_unused(self, handle: Handle[S]) -> None:
        if handle.users == 0 and handle.size == 0:
            self._handles.pop(handle.domain, None)
