"""The clock of a simulated fleet: arrivals, steps, failures, and messages between machines, in order of time."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from outrider.analysis.fleet.failures import Failures
from outrider.analysis.fleet.hosts import DraftPool, Host, shared_cores
from outrider.analysis.fleet.machine import Machine
from outrider.analysis.fleet.replica import Counts, Replica
from outrider.analysis.fleet.routing import least_loaded, router
from outrider.analysis.fleet.running import Progress
from outrider.analysis.fleet.workload import Floats, Workload
from outrider.errors import InvalidRequestError

TICK = 1000  # requests between two reports of progress


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """Replicas of a machine, and what is between them."""

    machine: Machine
    replicas: int = 1
    routing: str = "prefix"
    cores: int | None = None  # that all replicas share; None: each has a machine of its own
    speeds: Sequence[float] = ()  # of each replica by the number that are busy, where that was measured
    draft_machines: int = 0  # that draft for all replicas
    network_delay: float = 0.0  # seconds, one way, between machines
    prefill_replicas: int = 0  # that only read prompts
    transfer_bandwidth: float = 12.5e9  # bytes a second of cache from those to the others
    mtbf: float | None = None  # seconds between two failures of a replica, on average
    restart: float = 60.0  # seconds a failed replica is away

    def __post_init__(self) -> None:
        for name in ("replicas", "cores", "mtbf", "restart", "transfer_bandwidth"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise InvalidRequestError(f"{name}={value} is not valid: use a positive number", param=name)
        for name in ("draft_machines", "network_delay", "prefill_replicas"):
            if getattr(self, name) < 0:
                raise InvalidRequestError(f"{name}={getattr(self, name)} is not valid: use 0 or more", param=name)
        if self.draft_machines and self.machine.draft is None:
            raise InvalidRequestError(
                f"draft_machines={self.draft_machines}, but there is no draft source: give one", param="draft_machines"
            )


@dataclass(frozen=True)
class Run:
    """What happened. Arrays are [requests], in seconds of simulated time."""

    workload: Workload
    fleet: Fleet
    arrived: Floats
    first: Floats
    finished: Floats
    counts: Sequence[Counts]  # of each replica, then of each that only reads
    resumed: int  # requests that went on elsewhere after a failure
    failures: int
    end: float  # seconds, of the last answer
    waiting: float  # requests in the system, integrated over time
    draft_busy: float  # seconds of all draft machines


class _Simulation:
    """One run. ``_at`` plans what happens; everything else happens at its time."""

    def __init__(self, fleet: Fleet, workload: Workload, seed: int, tick: Callable[[str, int], None]) -> None:
        self._fleet, self._workload, self._tick = fleet, workload, tick
        self._events: list[tuple[float, int, Callable[[float], None]]] = []  # the second tells those of one time apart
        self._planned = 0
        self._progress = Progress.of(workload)
        route, accept, fail = (np.random.default_rng([seed, purpose]) for purpose in (10, 11, 12))
        total = fleet.replicas + fleet.prefill_replicas
        self._all = [Replica(i, fleet.machine, self._progress, accept) for i in range(total)]
        self._decoders, self._readers = self._all[: fleet.replicas], self._all[fleet.replicas :]
        for replica in self._readers:
            replica.only_reads = True
        self._pool = (
            DraftPool(fleet.draft_machines, fleet.machine, fleet.network_delay) if fleet.draft_machines else None
        )
        for replica in self._decoders:
            replica.remote_drafts = self._pool is not None
        self._hosts = _hosts(fleet, total)
        self._router = router(fleet.routing, workload, route)
        self._failures = Failures(fleet.mtbf, fleet.restart, fail)
        self._arrived = np.full(len(workload), np.nan)
        self._followers: dict[int, int] = {}  # by the request whose end they wait for
        self._stranded: list[int] = []  # that no replica lives for
        self._resumed = self._failed = self._done = self._inside = 0
        self._area = self._now = 0.0

    def run(self) -> Run:
        for replica in self._all:
            if (when := self._failures.next(0.0)) is not None:
                self._at(when, lambda now, r=replica: self._fail(r, now))  # type: ignore[misc]
        arrivals, count, following = self._workload.arrivals.tolist(), len(self._workload), 0
        while self._done < count:
            if following < count and (not self._events or arrivals[following] <= self._events[0][0]):
                self._arrive(following, arrivals[following])
                following += 1
            else:
                when, _, act = heapq.heappop(self._events)
                act(when)
        return Run(
            self._workload, self._fleet, self._arrived, self._progress.first, self._progress.finished,
            [replica.counts for replica in self._all], self._resumed, self._failed, self._now, self._area,
            0.0 if self._pool is None else self._pool.busy,
        )  # fmt: skip

    def _at(self, when: float, act: Callable[[float], None]) -> None:
        self._planned += 1
        heapq.heappush(self._events, (when, self._planned, act))

    def _count(self, now: float, change: int) -> None:
        """So many requests more are in the system."""
        self._area += self._inside * (now - self._now)
        self._inside += change
        self._now = now

    def _arrive(self, request: int, now: float) -> None:
        before = int(self._workload.follows[request])
        if before >= 0 and np.isnan(self._progress.finished[before]):
            self._followers[before] = request
            return
        self._arrived[request] = now
        self._count(now, 1)
        delay = self._fleet.machine.request_seconds
        if delay:
            self._at(now + delay, lambda now: self._route(request, now))
        else:
            self._route(request, now)

    def _route(self, request: int, now: float) -> None:
        """Give a request that is new, or that a failure has sent back, to a replica."""
        living = [replica for replica in self._readers or self._decoders if replica.alive]
        if not living:
            self._stranded.append(request)
            return
        replica = self._router.choose(request, living)
        replica.add(request)
        self._start(replica, now)

    def _start(self, replica: Replica, now: float) -> None:
        """Begin a replica's next step, unless it is in one or has nothing to do."""
        if replica.step is not None or not replica.alive:
            return
        step = replica.begin(now)
        if step is not None:
            host = self._hosts[replica.number]
            host.start(replica.number, step.work, now)
            self._watch(host)

    def _watch(self, host: Host) -> None:
        """Plan the end of a host's next step; plans from before it changed do nothing."""
        when, version = host.next_end(), host.version
        if when is not None:
            self._at(when, lambda now: self._end(host, version, now))

    def _end(self, host: Host, version: int, now: float) -> None:
        if host.version != version:
            return
        replica = self._all[host.finish(now)]
        ended = replica.end(now)
        for request in ended.done:
            self._finish(request, now)
        for request in ended.handed_on:
            self._hand_on(request, now)
        if ended.drafting and self._pool is not None:
            asked = replica.number, ended.drafting
            self._at(now + self._pool.delay, lambda now: self._ask(*asked, now))
        self._watch(host)
        self._start(replica, now)

    def _finish(self, request: int, now: float) -> None:
        self._done += 1
        self._count(now, -1)
        if self._done % TICK == 0:
            self._tick("requests", TICK)
        if request in self._followers:
            self._arrive(self._followers.pop(request), now)

    def _hand_on(self, request: int, now: float) -> None:
        """A prompt was read: its cache goes to a replica that decodes."""
        size = float(self._workload.prompts[request]) * self._fleet.machine.kv_bytes_per_token
        delay = self._fleet.network_delay + size / self._fleet.transfer_bandwidth
        self._at(now + delay, lambda now: self._receive(request, now))

    def _receive(self, request: int, now: float) -> None:
        living = [replica for replica in self._decoders if replica.alive]
        if not living:
            self._stranded.append(request)
            return
        replica = least_loaded(living)
        replica.add(request, received=True)
        self._start(replica, now)

    def _ask(self, replica: int, requests: list[int], now: float) -> None:
        assert self._pool is not None
        self._pool.ask(replica, requests)
        self._draft(now)

    def _draft(self, now: float) -> None:
        """Begin batches on the draft machines that are free."""
        assert self._pool is not None
        while (begun := self._pool.begin()) is not None:
            seconds, batch = begun
            self._at(now + seconds, lambda now, batch=batch: self._drafted(batch, now))  # type: ignore[misc]

    def _drafted(self, batch: list[tuple[int, list[int]]], now: float) -> None:
        assert self._pool is not None
        self._pool.end()
        for number, requests in batch:
            self._at(now + self._pool.delay, lambda now, n=number, r=requests: self._deliver(n, r, now))  # type: ignore[misc]
        self._draft(now)

    def _deliver(self, number: int, requests: list[int], now: float) -> None:
        self._all[number].drafted(requests, now)
        self._start(self._all[number], now)

    def _fail(self, replica: Replica, now: float) -> None:
        """A replica dies; its requests go on elsewhere behind the tokens that they have."""
        self._failed += 1
        host = self._hosts[replica.number]
        host.cancel(replica.number, now)
        self._watch(host)
        replica.alive = False
        lost = replica.lose_all()
        self._resumed += len(lost)
        for request in lost:
            self._route(request, now)
        self._at(now + self._fleet.restart, lambda now: self._restart(replica, now))

    def _restart(self, replica: Replica, now: float) -> None:
        replica.alive = True
        stranded, self._stranded = self._stranded, []
        for request in stranded:
            self._route(request, now)
        if (when := self._failures.next(now)) is not None:
            self._at(when, lambda now: self._fail(replica, now))


def _hosts(fleet: Fleet, total: int) -> list[Host]:
    """The host of each replica."""
    if fleet.cores is None:
        return [Host((1.0,)) for _ in range(total)]
    return [Host(fleet.speeds or shared_cores(total, fleet.cores))] * total


def simulate(
    fleet: Fleet, workload: Workload, *, seed: int = 0, tick: Callable[[str, int], None] = lambda what, count: None
) -> Run:
    """Run a workload on a fleet until every request is answered.

    The same arguments give the same run. ``tick`` is called every ``TICK`` requests.

    Raises:
        InvalidRequestError: a request does not fit a replica's cache.
    """
    largest = int((workload.prompts + workload.outputs).max(initial=0))
    if largest > fleet.machine.kv_tokens:
        raise InvalidRequestError(
            f"a request of {largest} tokens does not fit a cache of kv_tokens={fleet.machine.kv_tokens}: use shorter "
            "ones or a larger cache", param="kv_tokens",
        )  # fmt: skip
    return _Simulation(fleet, workload, seed, tick).run()
