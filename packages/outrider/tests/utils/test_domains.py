"""Stores apart for each domain: within one limit, fair to tenants, and never taken from a request that uses them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.drafters.text.responses import Responses
from outrider.utils.domains import DOMAIN_BYTES, Domains
from tests.utils.store_bytes import counted_over_taken

UNIT = 100


class Notes:
    """A store of units."""

    def __init__(self) -> None:
        self.units = 0

    @property
    def size(self) -> int:
        return self.units * UNIT

    def forget(self) -> None:
        self.units -= 1


def learn(domains: Domains[Notes], domain: str, tenant: str, units: int) -> None:
    lease = domains.open(domain, tenant)
    lease.store.units += units
    domains.close(lease)


def held(domains: Domains[Notes], domain: str) -> int:
    lease = domains.open(domain, "asks")
    units = lease.store.units
    domains.close(lease)
    return units


def test_requests_of_a_domain_share_its_store_and_others_do_not() -> None:
    domains = Domains(Notes, 10_000)
    first, second, other = domains.open("a"), domains.open("a"), domains.open("b")
    assert first.store is second.store
    assert first.store is not other.store


def test_the_least_recently_used_domain_is_emptied_first() -> None:
    domains = Domains(Notes, 3 * (DOMAIN_BYTES + 2 * UNIT))
    for name in "abc":
        learn(domains, name, "t", 2)
    held(domains, "a")
    learn(domains, "d", "t", 2)
    assert [held(domains, name) for name in "abcd"] == [2, 0, 2, 2]
    assert len(domains) == 3


def test_a_tenant_with_many_domains_costs_the_others_nothing_below_their_share() -> None:
    domains = Domains(Notes, 100 * (DOMAIN_BYTES + UNIT))
    learn(domains, "victim", "v", 40)
    for i in range(1000):
        learn(domains, f"salt {i}", "attacker", 1)
    assert held(domains, "victim") == 40
    assert held(domains, "salt 999") == 1
    assert held(domains, "salt 0") == 0


def test_a_store_in_use_is_emptied_but_stays() -> None:
    domains = Domains(Notes, DOMAIN_BYTES + 10 * UNIT)
    lease = domains.open("a", "t")
    lease.store.units += 10
    domains.settle(lease)
    learn(domains, "b", "t", 10)
    assert lease.store.units == 0
    assert domains.open("a", "t").store is lease.store
    lease.store.units += 3
    domains.settle(lease)
    assert (lease.store.units, domains.size) == (3, DOMAIN_BYTES + 3 * UNIT)


actions = st.lists(
    st.tuples(st.sampled_from("abcd"), st.integers(0, 2), st.integers(0, 30), st.booleans()), max_size=60
)


@given(actions, st.integers(0, 8000))
def test_any_use_stays_within_the_limit_and_adds_up(uses: list[tuple[str, int, int, bool]], capacity: int) -> None:
    domains = Domains(Notes, capacity)
    leases = []
    for tenant, number, units, keep in uses:
        lease = domains.open(f"{tenant}{number}", tenant)
        lease.store.units += units
        domains.settle(lease)
        if keep:
            leases.append(lease)
        else:
            domains.close(lease)
        assert domains.size <= capacity
    for lease in leases:
        domains.close(lease)
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
