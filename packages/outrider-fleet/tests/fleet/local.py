"""Replicas in the test's own process, which die when they are told to, and a whole server over them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any

from outrider import LLM
from outrider_fleet.ingress.pool import Member, ReplicaPool
from outrider_fleet.ingress.server import FleetServer
from outrider_fleet.messages.replica import ReplicaLostError
from outrider_fleet.messages.wire import Message, decode, encode
from outrider_fleet.replica.engine_host import EngineHost
from outrider_fleet.settings import FleetSettings
from outrider_server.http.listening import listen
from outrider_server.settings import ServerSettings
from tests.server.live import wait_until


class LocalReplica:
    """Everything it is told and says passes through JSON. It dies after ``lives`` messages of runs."""

    def __init__(self, host: EngineHost, name: str, lives: int | None = None) -> None:
        self.host, self._name, self.lives = host, name, lives
        self.dead = False
        self.given: list[Message] = []

    @property
    def name(self) -> str:
        return self._name

    async def run(self, message: Message) -> AsyncGenerator[Message]:
        self.given.append(decode(encode(message)))
        async with aclosing(self.host.run(self.given[-1])) as parts:
            async for part in parts:
                if self.lives is not None:
                    self.lives -= 1
                    self.dead = self.dead or self.lives < 0
                self._check()
                yield decode(encode(part))

    async def describe(self) -> Message:
        self._check()
        return decode(encode(self.host.description()))

    async def status(self) -> Message:
        self._check()
        return decode(encode(self.host.status()))

    async def teach(self, message: Message) -> None:
        self._check()
        self.host.teach(decode(encode(message)))

    def _check(self) -> None:
        if self.dead:
            raise ReplicaLostError(f"{self._name} is dead")


def load_hosts(folder: Path, count: int, **options: Any) -> list[EngineHost]:
    given: dict[str, Any] = {"draft": "suffix", "threads": 1, "max_batch_size": 4} | options
    return [EngineHost(LLM(str(folder), **given), f"r{i}") for i in range(count)]


class LocalBackend:
    """Replaces a replica that has died by one with the same engine; each new one gets the next of ``lives``."""

    where, replaces_itself = "in this process", False

    def __init__(self, hosts: list[EngineHost], lives: Callable[[], int | None] = lambda: None) -> None:
        self._free, self._lives = list(hosts), lives
        self.count, self._number = len(hosts), 0
        self._replicas: dict[str, LocalReplica] = {}

    async def start(self, pool: ReplicaPool, on_failure: Callable[[int], None]) -> None:
        self._pool = pool
        for host in self._free:
            self._add(host)

    def _add(self, host: EngineHost) -> None:
        name = f"r{self._number}"
        self._number += 1
        self._replicas[name] = LocalReplica(host, name, self._lives())
        self._pool.add(self._replicas[name])

    def ready(self, member: Member) -> None:
        """Nothing to do."""

    def lost(self, name: str) -> None:
        self._add(self._replicas.pop(name).host)

    def adjust(self) -> None:
        """Nothing to do."""

    async def roll(self, seconds: float, switch: Callable[[Member], Awaitable[None]]) -> None:
        """Nothing to do."""

    async def close(self) -> None:
        """The hosts are the test's."""


@contextmanager
def fleet_server(
    folder: Path, backend: LocalBackend, fleet: FleetSettings | None = None, **settings: Any
) -> Iterator[tuple[FleetServer, str]]:
    """A server over a backend, and its address."""
    options: dict[str, Any] = {"port": 0, "served_model_names": ("tiny",)} | settings
    given = ServerSettings(**options)
    listener = listen(given)
    server = FleetServer(given, fleet or FleetSettings(replicas="2"), listener, str(folder), backend)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])))
    thread.start()
    try:
        wait_until(lambda: server.models.state == "ready")
        yield server, f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = server.force_exit = True
        thread.join(30)
        server.models.close()
