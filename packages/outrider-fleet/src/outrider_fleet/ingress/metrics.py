"""Metrics of an ingress about its replicas, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from outrider_fleet.ingress.pool import Member, ReplicaPool


class FleetMetrics:
    """Counters of one ingress."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str) -> Counter:
            return Counter(f"outrider:fleet_{name}", text, registry=registry)

        self.registry = registry
        self.resumed = counter("sequences_resumed", "Sequences that went on at another replica.")
        self.abandoned = counter("requests_abandoned", "Requests that lost too many replicas.")
        self.differing = counter("replicas_differing", "Answers that a second replica did not repeat.")

    def watch(self, pool: ReplicaPool) -> None:
        """Report on the pool's replicas from now on."""
        self.registry.register(_PoolCollector(pool))


class _PoolCollector(Collector):
    def __init__(self, pool: ReplicaPool) -> None:
        self._pool = pool

    def collect(self) -> Iterable[Metric]:
        pool = self._pool
        members = pool.members
        yield GaugeMetricFamily("outrider:fleet_replicas", "Replicas that take requests.", value=len(pool.open))
        yield CounterMetricFamily("outrider:fleet_replicas_lost", "Replicas that were lost.", value=pool.lost)
        passed = "Responses that replicas learned from each other."
        yield CounterMetricFamily("outrider:fleet_responses_shared", passed, value=pool.hub.passed_on)
        yield _by_replica("sequences", "Sequences that run or wait.", members, lambda m: m.sequences)
        yield _by_replica("running", "Sequences that run.", members, lambda m: _status(m, "running"))
        yield _by_replica("waiting", "Sequences that wait.", members, lambda m: _status(m, "waiting"))
        yield _by_replica("free_kv_tokens", "Room in the cache.", members, lambda m: _status(m, "free_kv_tokens"))
        yield _by_replica("blocks_held", "Blocks of 16 tokens to be found in the cache.", members, _held)
        yield _counted("routed", "Prompts sent to a replica.", pool.routed)
        yield _counted("tokens", "Tokens that came from a replica.", pool.relayed)


def _counted(name: str, text: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(f"outrider:fleet_{name}", text, labels=["replica"])
    for replica, count in dict(counts).items():
        family.add_metric([replica], count)
    return family


def _status(member: Member, name: str) -> float:
    return 0.0 if member.status is None else member.status[name]


def _held(member: Member) -> float:
    return 0.0 if member.status is None else len(member.status["holds"])


def _by_replica(name: str, text: str, members: Sequence[Member], value: Callable[[Member], float]) -> Metric:
    gauge = GaugeMetricFamily(f"outrider:fleet_{name}", text, labels=["replica"])
    for member in members:
        gauge.add_metric([member.name], value(member))
    return gauge
