"""``outrider serve --replicas``: the usual server, whose engine is a pool of replicas."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Coroutine
from typing import Any

from outrider.errors import OutriderError
from outrider.fleet import tracing
from outrider.fleet.autoscaling import Autoscaler, Demand
from outrider.fleet.fleet_engine import FleetEngine
from outrider.fleet.front import Front
from outrider.fleet.metrics import FleetMetrics
from outrider.fleet.pool import Member, Pool
from outrider.fleet.processes import Processes, ReplicaOptions
from outrider.fleet.routing import make_router
from outrider.fleet.settings import FleetSettings
from outrider.server.http.logs import configure
from outrider.server.model_specs import usual_name
from outrider.server.models import Models
from outrider.server.run import UvicornServer, listen, run
from outrider.server.service import Service
from outrider.server.settings import ServerSettings

logger = logging.getLogger(__name__)

ROLL_SECONDS = 600.0  # that a replica has to finish what it does when it is replaced


def serve_fleet(settings: ServerSettings, fleet: FleetSettings, model: str, **options: Any) -> int:
    """As ``outrider.server.run.serve``, with the replicas of ``fleet``, which are processes of this machine."""
    configure(settings)
    listener = listen(settings)
    if fleet.traces:
        tracing.enable("ingress")
    options.setdefault("threads", max(1, (os.cpu_count() or 1) // fleet.bounds[1]))
    return run(ProcessFleet(settings, fleet, listener, model, options), listener)


class FleetService:
    """Joins a pool and a service: the model is ready with its first replica."""

    def __init__(self, service: Service, fleet: FleetSettings, model: str) -> None:
        self._service, self._model, self._began = service, model, time.monotonic()
        self.pool = Pool(make_router(fleet.routing), shares=fleet.share_drafts, on_ready=self._ready)
        self.metrics = FleetMetrics(service.metrics.registry)
        self.metrics.watch(self.pool)
        self.fingerprint = ""
        self.listeners: list[Callable[[Member], None]] = []

    def _ready(self, member: Member) -> None:
        for tell in self.listeners:
            tell(member)
        if not self.fingerprint:
            self.switch(member)
            logger.info("ready: %s, first replica after %.1f s", self._model, time.monotonic() - self._began)

    def switch(self, member: Member) -> None:
        """From now on new requests are for the version of the model that ``member`` has."""
        front = Front(self._model, member.description)
        self.fingerprint = member.fingerprint
        self._service.begin(FleetEngine(front, self.pool, self.metrics), member.fingerprint)


class ProcessFleet(UvicornServer):
    """A server whose replicas are processes of this machine. SIGHUP replaces them, one by one."""

    def __init__(
        self,
        settings: ServerSettings,
        fleet: FleetSettings,
        listener: socket.socket,
        model: str,
        options: dict[str, Any],
    ) -> None:
        service = Service(settings, usual_name(model))
        super().__init__(Models.of(service), listener)
        self._fleet_settings, self._model, self._options = fleet, model, options
        self._work: set[asyncio.Task[None]] = set()
        self._service = service

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        settings, fleet = self.models.settings, self._fleet_settings
        least, most = fleet.bounds
        self.fleet = FleetService(self._service, fleet, self._model)
        given = ReplicaOptions(
            self._model, self._options, settings.log_level, settings.log_format, fleet.share_drafts, fleet.traces
        )
        self.processes = Processes(given, self.fleet.pool, least, self._failed)
        self.fleet.pool.on_lost = self.processes.lost
        self.fleet.listeners.append(self.processes.ready)
        await super().startup(sockets)
        counts = f"{least}" if least == most else f"{least} to {most}"
        logger.info("%s replicas as processes of this machine, routing by %s", counts, fleet.routing)
        self.processes.adjust()
        if most > least:
            self._start(self._autoscale(least, most))
        with contextlib.suppress(ValueError, AttributeError, RuntimeError):  # only where there are such signals
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self.roll)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        for task in self._work:
            task.cancel()
        self.fleet.pool.close()
        await self.processes.close()

    def roll(self) -> None:
        """Replace all replicas, and the model if its files have changed."""
        logger.info("replacing %d replicas, one by one", self.processes.count)
        self._start(self.processes.roll(ROLL_SECONDS, self.fleet.switch))

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
            if wanted != self.processes.count and len(members) == self.processes.count:
                logger.info("%d replicas, %d wanted", self.processes.count, wanted)
                self.processes.count = wanted
                self.processes.adjust()
