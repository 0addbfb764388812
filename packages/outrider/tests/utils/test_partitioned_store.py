"""Stores apart for each domain: within one limit, fair to tenants, and never taken from a request that uses them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.drafters.text.responses import Responses
from outrider.utils.partitioned_store import DOMAIN_BYTES, PartitionedStore
from tests.utils.store_bytes import counted_over_taken

UNIT = 100


class Notes:
    """A store of units."""

    def __init__(self) -> None:
        self.units = 0

    @property
    def size(self) -> int:
        return self.units * UNIT

    def evict(self) -> None:
        self.units -= 1


def learn(domains: PartitionedStore[Notes], domain: str, tenant: str, units: int) -> None:
    handle = domains.open(domain, tenant)
    handle.store.units += units
    domains.close(handle)


def held(domains: PartitionedStore[Notes], domain: str) -> int:
    handle = domains.open(domain, "asks")
    units = handle.store.units
    domains.close(handle)
    return units


def test_requests_of_a_domain_share_its_store_and_others_do_not() -> None:
    domains = PartitionedStore(Notes, 10_000)
    first, second, other = domains.open("a"), domains.open("a"), domains.open("b")
    assert first.store is second.store
    assert first.store is not other.store


def test_the_least_recently_used_domain_is_emptied_first() -> None:
    domains = PartitionedStore(Notes, 3 * (DOMAIN_BYTES + 2 * UNIT))
    for name in "abc":
        learn(domains, name, "t", 2)
    held(domains, "a")
    learn(domains, "d", "t", 2)
    assert [held(domains, name) for name in "abcd"] == [2, 0, 2, 2]
    assert len(domains) == 3


def test_a_tenant_with_many_domains_costs_the_others_nothing_below_their_share() -> None:
    domains = PartitionedStore(Notes, 100 * (DOMAIN_BYTES + UNIT))
    learn(domains, "victim", "v", 40)
    for i in range(1000):
        learn(domains, f"salt {i}", "attacker", 1)
    assert held(domains, "victim") == 40
    assert held(domains, "salt 999") == 1
    assert held(domains, "salt 0") == 0


def test_a_store_in_use_is_emptied_but_stays() -> None:
    domains = PartitionedStore(Notes, DOMAIN_BYTES + 10 * UNIT)
    handle = domains.open("a", "t")
    handle.store.units += 10
    domains.settle(handle)
    learn(domains, "b", "t", 10)
    assert handle.store.units == 0
    assert domains.open("a", "t").store is handle.store
    handle.store.units += 3
    domains.settle(handle)
    assert (handle.store.units, domains.size) == (3, DOMAIN_BYTES + 3 * UNIT)


actions = st.lists(
    st.tuples(st.sampled_from("abcd"), st.integers(0, 2), st.integers(0, 30), st.booleans()), max_size=60
)


@given(actions, st.integers(0, 8000))
def test_any_use_stays_within_the_limit_and_adds_up(uses: list[tuple[str, int, int, bool]], capacity: int) -> None:
    domains = PartitionedStore(Notes, capacity)
    handles = []
    for tenant, number, units, keep in uses:
        handle = domains.open(f"{tenant}{number}", tenant)
        handle.store.units += units
        domains.settle(handle)
        if keep:
            handles.append(handle)
        else:
            domains.close(handle)
        assert domains.size <= capacity
    for handle in handles:
        domains.close(handle)
    left = {name: held(domains, name) for name in {f"{tenant}{number}" for tenant, number, _, _ in uses}}
    full = [units for units in left.values() if units]
    assert len(domains) == len(full)
    assert domains.size == sum(DOMAIN_BYTES + UNIT * units for units in full)


def fill(store: Responses, count: int) -> None:
    """Learn ``count`` tokens, none of which was seen before."""
    store.add("r", [1_000_000 + i for i in range(count)])


@pytest.mark.parametrize("count", [4, 400])
def test_bytes_are_counted_about_right_whatever_the_number_of_domains(count: int) -> None:
    """Within half and twice of what Python takes: enough for a limit, and tight enough to notice a forgotten part."""
    assert 0.5 < counted_over_taken(Responses, fill, 8000 // count, count) < 2
