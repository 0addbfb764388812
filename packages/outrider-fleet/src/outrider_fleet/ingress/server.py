"""``outrider serve --replicas``: the usual server, whose engine is a pool of replicas."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

from outrider.errors import OutriderError
from outrider.utils.garbage import freeze_gc
from outrider_fleet import tracing
from outrider_fleet.ingress.autoscaling import Autoscaler, Demand
from outrider_fleet.ingress.fleet_engine import FleetEngine
from outrider_fleet.ingress.front import Front
from outrider_fleet.ingress.metrics import FleetMetrics
from outrider_fleet.ingress.pool import Member, ReplicaPool
from outrider_fleet.ingress.processes import Processes, ReplicaOptions
from outrider_fleet.ingress.routing import make_router
from outrider_fleet.settings import FleetSettings
from outrider_server.http.listening import listen
from outrider_server.http.logs import configure
from outrider_server.model_specs import usual_name
from outrider_server.models import Models
from outrider_server.run import UvicornServer, keep_domains, run
from outrider_server.service import Service
from outrider_server.settings import ServerSettings

logger = logging.getLogger(__name__)

ROLL_SECONDS = 600.0  # that a replica has to finish its requests when it is replaced


def serve_fleet(settings: ServerSettings, fleet: FleetSettings, model: str, **options: Any) -> int:
    """As ``outrider_server.run.serve``, with the replicas of ``fleet``, which are processes of this machine."""
    prepare(settings, fleet, options)
    listener = listen(settings)
    given = ReplicaOptions(model, options, settings.log_level, settings.log_format, fleet.share_drafts, fleet.traces)
    server = FleetServer(settings, fleet, listener, model, Processes(given, fleet.bounds[0]))
    keep_domains(server.models, options)
    return run(server, listener)


def prepare(settings: ServerSettings, fleet: FleetSettings, options: dict[str, Any]) -> None:
    """Set up an ingress: the log, the collector, traces, and each replica's share of the threads."""
    configure(settings)
    freeze_gc()
    if fleet.traces:
        tracing.enable("ingress")
    options.setdefault("threads", max(1, (os.cpu_count() or 1) // fleet.bounds[1]))


class ReplicaBackend(Protocol):
    """Where replicas run."""

    where: str
    count: int
    """Replicas that there should be."""
    replaces_itself: bool
    """Whether it replaces replicas without asking when new ones may be used."""

    async def start(self, pool: ReplicaPool, on_failure: Callable[[int], None]) -> None: ...
    def ready(self, member: Member) -> None: ...
    def lost(self, name: str) -> None: ...
    def adjust(self) -> None: ...
    async def roll(self, seconds: float, switch: Callable[[Member], Awaitable[None]]) -> None: ...
    async def close(self) -> None: ...


class FleetService:
    """Joins a pool and a service: the model is ready with its first replica."""

    def __init__(self, service: Service, fleet: FleetSettings, model: str) -> None:
        self._service, self._model, self._began = service, model, time.monotonic()
        self.pool = ReplicaPool(make_router(fleet.routing), shares=fleet.share_drafts, on_ready=self._ready)
        self.metrics = FleetMetrics(service.metrics.registry)
        self.metrics.watch(self.pool)
        self.fingerprint = ""
        self._switching = asyncio.Lock()
        self.switches_at_once = False  # to a new version of the model, with its first replica
        self.listeners: list[Callable[[Member], None]] = []

    async def _ready(self, member: Member) -> None:
        for tell in self.listeners:
            tell(member)
        seconds = time.monotonic() - self._began
        pid = member.description["pid"]
        logger.info("replica %s: ready after %.1f s, process %d, %s", member.name, seconds, pid, member.fingerprint)
        if not self.fingerprint or self.switches_at_once:
            await self.switch(member, replace=self.switches_at_once)

    async def switch(self, member: Member, *, replace: bool = True) -> None:
        """From now on new requests are for the version of the model that ``member`` has.

        ``replace``: also if another version has been chosen, maybe while this one waited for its tokenizer.
        """
        async with self._switching:
            if member.fingerprint == self.fingerprint or (self.fingerprint and not replace):
                return
            # A tokenizer takes a second to load, in which running streams go on.
            front = await asyncio.to_thread(Front, self._model, member.description)
            is_first, self.fingerprint = not self.fingerprint, member.fingerprint
            self._service.begin(FleetEngine(front, self.pool, self.metrics), member.fingerprint)
            if is_first:
                logger.info("ready: %s", ", ".join(self._service.model_names))


class FleetServer(UvicornServer):
    """A server whose engines are elsewhere. SIGHUP replaces them, one by one."""

    def __init__(
        self,
        settings: ServerSettings,
        fleet: FleetSettings,
        listener: socket.socket,
        model: str,
        backend: ReplicaBackend,
    ) -> None:
        service = Service(settings, usual_name(model))
        super().__init__(Models.of(service), listener)
        self._settings, self._model, self.backend = fleet, model, backend
        self._work: set[asyncio.Task[None]] = set()
        self._service = service

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        fleet, backend = self._settings, self.backend
        least, most = fleet.bounds
        self.fleet = FleetService(self._service, fleet, self._model)
        self.fleet.pool.on_lost = backend.lost
        self.fleet.listeners.append(backend.ready)
        self.fleet.switches_at_once = backend.replaces_itself
        await super().startup(sockets)
        counts = f"{least}" if least == most else f"{least} to {most}"
        logger.info("%s replicas %s, routing by %s", counts, backend.where, fleet.routing)
        self._start(backend.start(self.fleet.pool, self._failed))
        if most > least:
            self._start(self._autoscale(least, most))
        with contextlib.suppress(ValueError, AttributeError, RuntimeError):  # not every platform has SIGHUP
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self.roll)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        for task in self._work:
            task.cancel()
        self.fleet.pool.close()
        await self.backend.close()

    def roll(self) -> None:
        """Replace all replicas, and the model if its files have changed."""
        logger.info("replacing %d replicas, one by one", self.backend.count)
        self._start(self.backend.roll(ROLL_SECONDS, self.fleet.switch))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    def _failed(self, code: int) -> None:
        self.failure = OutriderError(f"no replica could be started (exit code {code}): the lines above say why")
        self.should_exit = True

    async def _autoscale(self, least: int, most: int) -> None:
        scaler = Autoscaler(least, most)
        while True:
            await asyncio.sleep(0.5)
            members = self.fleet.pool.open
            demands = [Demand(m.sequences, m.places, m.status["tokens"] if m.status else 0) for m in members]
            wanted = scaler.wanted(demands, time.monotonic())
            if wanted != self.backend.count and len(members) == self.backend.count:
                logger.info("%d replicas, %d wanted", self.backend.count, wanted)
                self.backend.count = wanted
                self.backend.adjust()
