"""Who gets which request: sessions stay, prefixes find their cache, and load spreads what is left."""

from __future__ import annotations

from collections import Counter

import pytest

from outrider.cache import CacheSpec
from outrider.cache.blocks import DIGEST_BLOCK
from outrider.models.toy import TableModel
from outrider_fleet.ingress.routing import Job, Load, PrefixRouter, Ring, SessionRouter, block_names, make_router
from outrider_fleet.settings import POLICIES

LOADS = [Load(f"r{i}", 0, 4) for i in range(4)]


def job(tokens: list[int], session: str = "", domain: str = "") -> Job:
    return Job(len(tokens), block_names(tokens, domain), session, domain)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_uses_all_replicas(policy: str) -> None:
    router = make_router(policy, seed=1)  # type: ignore[arg-type]
    chosen = Counter(router.choose(job([i] * 40, session=f"s{i}"), LOADS) for i in range(200))
    assert len(chosen) == 4
    assert max(chosen.values()) < 110


def test_a_session_stays_and_moves_only_with_its_replica() -> None:
    router = SessionRouter(seed=1)
    before = {f"s{i}": router.choose(job([i] * 40, f"s{i}"), LOADS) for i in range(300)}
    assert before == {name: router.choose(job([7] * 40, name), LOADS) for name in before}
    after = {name: router.choose(job([7] * 40, name), [*LOADS, Load("r4", 0, 4)]) for name in before}
    moved = [name for name in before if before[name] != after[name]]
    assert {after[name] for name in moved} == {"r4"}
    assert 20 < len(moved) < 120


def test_a_ring_gives_every_replica_its_share() -> None:
    ring = Ring([f"r{i}" for i in range(5)])
    shares = Counter(ring.home(f"key {i}") for i in range(2000))
    assert min(shares.values()) > 200


def test_a_prompt_goes_where_its_beginning_is_held() -> None:
    router = PrefixRouter(seed=1)
    first = job(list(range(200)))
    home = router.choose(first, LOADS)
    router.routed(first, home)
    assert {router.choose(job([*range(200), *range(i, i + 50)]), LOADS) for i in range(20)} == {home}
    busy = [Load(load.name, 12 if load.name == home else 0, 4) for load in LOADS]
    assert router.choose(job([*range(200), 5]), busy) != home, "a long queue weighs more than a short prompt"


def test_a_replica_that_has_forgotten_is_known_to_have() -> None:
    router = PrefixRouter(seed=1)
    first = job(list(range(200)))
    router.routed(first, "r2")
    router.report("r2", first.blocks)
    router.report("r2", [])
    router.report("r2", [])
    assert len({router.choose(first, LOADS) for _ in range(30)}) > 1
    router.routed(first, "r2")
    assert router.choose(first, LOADS) == "r2"
    router.forget("r2")
    assert len({router.choose(first, LOADS) for _ in range(30)}) > 1


def test_one_caller_does_not_find_where_another_was() -> None:
    tokens = list(range(200))
    assert not set(block_names(tokens, "mine")) & set(block_names(tokens, "yours"))


def test_earlier_responses_of_a_domain_attract_its_requests() -> None:
    router = PrefixRouter(seed=1)
    loads = [*LOADS[:3], Load("r3", 0, 4, {"mine": 1000})]
    assert {router.choose(job([1] * 40, domain="mine"), loads) for _ in range(20)} == {"r3"}
    assert len({router.choose(job([1] * 40, domain="yours"), loads) for _ in range(40)}) == 4


@pytest.mark.parametrize("kind", ["contiguous", "paged"])
def test_caches_name_the_blocks_that_routing_compares(kind: str) -> None:
    spec = CacheSpec(slots=2, max_seq_len=128, kind=kind, tokens=256)  # type: ignore[arg-type]
    cache = TableModel.random(64, max_seq_len=128).new_cache(spec)
    tokens = list(range(40))
    slot = cache.allocate()
    cache.extend(slot, len(tokens))
    cache.publish_prefix(slot, tokens, "domain")
    held = {digest.hex() for digest in cache.held_digests()}
    assert held == set(block_names(tokens, "domain"))
    assert len(held) == 40 // DIGEST_BLOCK


def test_the_least_load_is_that_of_the_places_taken() -> None:
    router = make_router("least_load", seed=1)
    loads = [Load("small", 2, 4), Load("large", 3, 16), Load("full", 4, 4)]
    assert {router.choose(job([i] * 40), loads) for i in range(20)} == {"large"}
