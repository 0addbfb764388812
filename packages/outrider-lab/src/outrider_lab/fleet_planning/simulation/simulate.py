"""Simulates a fleet: requests arrive, are routed and answered step by step, and continue elsewhere after a failure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from outrider.errors import InvalidRequestError
from outrider_lab.fleet_planning.simulation.clock import Act, Clock
from outrider_lab.fleet_planning.simulation.draft_pool import Asked, DraftPool
from outrider_lab.fleet_planning.simulation.hosts import Host, shared_cores
from outrider_lab.fleet_planning.simulation.ingress import SimulatedIngress
from outrider_lab.fleet_planning.simulation.replica import Failures, SimulatedReplica
from outrider_lab.fleet_planning.simulation.routing import PERIOD, Routing, policy_name
from outrider_lab.fleet_planning.simulation.run import Fleet, SimulatedRun
from outrider_lab.fleet_planning.simulation.running import RequestProgress
from outrider_lab.fleet_planning.workload import Workload

TICK = 1000  # requests between two reports of progress


class _Simulation:
    """One run. ``_clock`` has the future events."""

    def __init__(self, fleet: Fleet, workload: Workload, seed: int, tick: Callable[[str, int], None]) -> None:
        self._fleet, self._workload, self._tick = fleet, workload, tick
        self._clock = Clock()
        self._progress = RequestProgress.of(workload)
        route, accept, fail, late = (np.random.default_rng([seed, purpose]) for purpose in (10, 11, 12, 13))
        total = fleet.replicas + fleet.prefill_replicas
        self._all = [SimulatedReplica(i, fleet.machine, self._progress, accept) for i in range(total)]
        self._decoders, self._readers = self._all[: fleet.replicas], self._all[fleet.replicas :]
        for replica in self._readers:
            replica.only_reads = True
        self._pool: DraftPool | None = None
        if fleet.draft_machines:
            delay = fleet.network_delay
            self._pool = DraftPool(fleet.draft_machines, fleet.machine, delay, self._clock, self._deliver)
        for replica in self._decoders:
            replica.remote_drafts = self._pool is not None
        self._hosts, self._ingress = _hosts(fleet, total), SimulatedIngress(fleet.machine, late)
        self._routing = Routing(policy_name(fleet.routing), workload, int(route.integers(1 << 30)))
        self._failures = Failures(fleet.mtbf, fleet.restart, fail)
        self._arrived = np.full(len(workload), np.nan)
        self._followers: dict[int, int] = {}  # waiting requests, by the request whose end they wait for
        self._stranded: list[int] = []  # requests without a living replica
        self._names = total  # given to replicas so far
        self._resumed = self._failed = self._done = self._inside = 0
        self._area = self._now = 0.0

    def run(self) -> SimulatedRun:
        self._plan_failures()
        self._clock.at(PERIOD, self._report)
        arrivals, count, following = self._workload.arrivals.tolist(), len(self._workload), 0
        while self._done < count:
            if following < count and arrivals[following] <= self._clock.next:
                self._arrive(following, arrivals[following])
                following += 1
            else:
                self._clock.step()
        return SimulatedRun(
            self._workload, self._fleet, self._arrived, self._progress.first, self._progress.finished,
            [replica.counts for replica in self._all], self._resumed, self._failed, self._now, self._area,
            0.0 if self._pool is None else self._pool.busy,
        )  # fmt: skip

    def _plan_failures(self) -> None:
        for replica in self._all:
            if (when := self._failures.next(0.0)) is not None:
                self._clock.at(when, partial(self._fail, replica))
        for when, number in self._fleet.kills:
            self._clock.at(when, partial(self._fail, self._all[number]))

    def _count(self, now: float, change: int) -> None:
        """Change the number of requests in the system by ``change``."""
        self._area += self._inside * (now - self._now)
        self._inside += change
        self._now = now

    def _arrive(self, request: int, now: float) -> None:
        before = int(self._workload.follows[request])
        if before >= 0 and not self._progress.finished[before] <= now:
            self._followers[before] = request
            return
        self._arrived[request] = now
        self._count(now, 1)
        self._when(self._ingress.take(now), now, partial(self._route, request))

    def _when(self, when: float, now: float, act: Act) -> None:
        """Plan ``act`` for ``when``, or call it at once if that is now."""
        if when > now:
            self._clock.at(when, act)
        else:
            act(now)

    def _route(self, request: int, now: float) -> None:
        """Give a request, new or lost in a failure, to a replica."""
        living = [replica for replica in self._readers or self._decoders if replica.alive]
        if not living:
            self._stranded.append(request)
            return
        replica = self._routing.choose(request, living)
        replica.add(request)
        self._start(replica, now)

    def _report(self, now: float) -> None:
        for replica in self._readers or self._decoders:
            if replica.alive:
                self._routing.report(replica)
        self._clock.at(now + PERIOD, self._report)

    def _start(self, replica: SimulatedReplica, now: float) -> None:
        """Begin a replica's next step, unless it runs one or has no work."""
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
            self._clock.at(when, lambda now: self._end(host, version, now))

    def _end(self, host: Host, version: int, now: float) -> None:
        if host.version != version:
            return
        replica = self._all[host.finish(now)]
        ended = replica.end(now, self._ingress.relay)
        for request in ended.done:
            self._when(float(self._progress.finished[request]), now, partial(self._finish, request))
        for request in ended.handed_on:
            self._hand_on(request, now)
        if ended.drafting and self._pool is not None:
            self._pool.ask((replica.number, ended.drafting), now)
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
        """Send the cache of a read prompt to a replica that decodes."""
        size = float(self._workload.prompts[request]) * self._fleet.machine.kv_bytes_per_token
        delay = self._fleet.network_delay + size / self._fleet.transfer_bandwidth
        self._clock.at(now + delay, partial(self._receive, request))

    def _receive(self, request: int, now: float) -> None:
        living = [replica for replica in self._decoders if replica.alive]
        if not living:
            self._stranded.append(request)
            return
        replica = min(living, key=lambda replica: replica.load)
        replica.add(request, received=True)
        self._start(replica, now)

    def _deliver(self, asked: Asked, now: float) -> None:
        """Give drafts from the pool to the replica that asked for them."""
        replica = self._all[asked[0]]
        replica.drafted(asked[1], now)
        self._start(replica, now)

    def _fail(self, replica: SimulatedReplica, now: float) -> None:
        """Let a replica die; its requests continue on other replicas after their tokens so far."""
        if not replica.alive:
            return
        self._failed += 1
        host = self._hosts[replica.number]
        host.cancel(replica.number, now)
        self._watch(host)
        replica.alive = False
        lost = replica.lose_all()
        self._routing.forget(replica.name)
        self._resumed += len(lost)
        for request in lost:
            self._route(request, now)
        self._clock.at(now + self._fleet.restart, partial(self._restart, replica))

    def _restart(self, replica: SimulatedReplica, now: float) -> None:
        replica.alive, replica.name = True, f"r{self._names}"
        self._names += 1
        stranded, self._stranded = self._stranded, []
        for request in stranded:
            self._route(request, now)
        if (when := self._failures.next(now)) is not None:
            self._clock.at(when, partial(self._fail, replica))


def _hosts(fleet: Fleet, total: int) -> Sequence[Host]:
    """The host of each replica."""
    if fleet.cores is None:
        return [Host((1.0,)) for _ in range(total)]
    return [Host(fleet.speeds or shared_cores(total, fleet.cores))] * total


def simulate(
    fleet: Fleet, workload: Workload, *, seed: int = 0, tick: Callable[[str, int], None] = lambda what, count: None
) -> SimulatedRun:
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
