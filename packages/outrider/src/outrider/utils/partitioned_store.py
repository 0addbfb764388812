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

    def evict(self) -> None:
        """Drop what was least recently used; afterwards ``size`` is smaller."""
        ...


S = TypeVar("S", bound=Store)


@dataclass(eq=False)
class _Tenant(Generic[S]):
    size: int = 0
    held: OrderedDict[str, Handle[S]] = field(default_factory=OrderedDict)  # not empty; least recently used first


class Handle(Generic[S]):
    """A domain's store, in the hands of the requests that use it: look it up once, then keep it."""

    def __init__(self, domain: str, tenant: str, store: S) -> None:
        self.domain, self.tenant, self.store = domain, tenant, store
        self.users = 0
        self.size = 0  # as it is accounted for


class PartitionedStore(Generic[S]):
    """The stores of all domains.

    Beyond the limit the tenant that holds most forgets first, the least recently used of its domains before the
    others. So a tenant with many domains, or with much to say, costs the others nothing below their equal share. A
    store that a request still uses is emptied at worst, never taken away.
    """

    def __init__(self, make: Callable[[], S], capacity: int) -> None:
        """``capacity``: bytes of all stores together."""
        self._make, self._capacity = make, capacity
        self._handles: dict[str, Handle[S]] = {}  # in use, or not empty
        self._tenants: dict[str, _Tenant[S]] = {}  # that hold anything
        self.size = 0

    def fits(self, size: int) -> bool:
        """Whether so many bytes are not too many even for a store that has everything to itself."""
        return size + DOMAIN_BYTES <= self._capacity

    def open(self, domain: str, tenant: str = "") -> Handle[S]:
        """The store of ``domain``, new if there is none. It is charged to the tenant that came first."""
        handle = self._handles.get(domain)
        if handle is None:
            handle = self._handles[domain] = Handle(domain, tenant, self._make())
        handle.users += 1
        if handle.size:
            self._tenants[handle.tenant].held.move_to_end(domain)
        return handle

    def close(self, handle: Handle[S]) -> None:
        """A request has finished with its store; call it once for each ``open``."""
        handle.users -= 1
        self.settle(handle)
        self._drop_if_unused(handle)

    def settle(self, handle: Handle[S]) -> None:
        """Account for what a store has learned, and forget what is too much."""
        self._account(handle)
        while self.size > self._capacity:
            largest = max(self._tenants.values(), key=lambda tenant: tenant.size)
            oldest = next(iter(largest.held.values()))
            oldest.store.evict()
            self._account(oldest, used=False)
            self._drop_if_unused(oldest)

    def sizes(self) -> dict[str, int]:
        """Bytes by domain, of those that hold anything."""
        return {handle.domain: handle.size for handle in list(self._handles.values()) if handle.size}

    def __len__(self) -> int:
        """Domains in use, or not empty."""
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
