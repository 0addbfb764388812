"""Frames between ingress and replica: nothing is read from who does not know the token."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from outrider.errors import ConfigError
from outrider_fleet.messages.replica import ReplicaLostError
from outrider_fleet.messages.wire import Message, decode
from outrider_fleet.replica.sockets import MAX_FRAME, SocketHost, SocketReplica
from outrider_fleet.settings import FleetSettings


class Host:
    """In place of an ``EngineHost``: counts, and waits in between if it is told to."""

    ended = False

    async def run(self, message: Message) -> AsyncGenerator[Message]:
        try:
            for i in range(message["count"]):
                yield {"i": i}
            await asyncio.sleep(message["wait"])
            yield {"done": True}
        finally:
            self.ended = True

    def status(self) -> Message:
        return {"alive": True}


def with_host(tmp_path: Path, work: Callable[[str, Host, asyncio.Server], Awaitable[None]]) -> None:
    async def serve() -> None:
        path = str(tmp_path / "r0")
        sockets, host = SocketHost(path, "secret"), Host()
        sockets.host.set_result(host)  # type: ignore[arg-type]
        server = await sockets.listen()
        try:
            await work(path, host, server)
        finally:
            server.close()

    asyncio.run(serve())


def test_a_call_gets_its_answers_and_its_end(tmp_path: Path) -> None:
    async def work(path: str, host: Host, server: asyncio.Server) -> None:
        replica = SocketReplica("r0", path, "secret")
        parts = [part async for part in replica.run({"count": 3, "wait": 0})]
        assert parts == [{"i": 0}, {"i": 1}, {"i": 2}, {"done": True}]
        assert await replica.status() == {"alive": True}
        assert stat.S_IMODE(os.stat(path).st_mode) & 0o077 == 0, "only its owner can use the socket"

    with_host(tmp_path, work)


def test_a_wrong_token_gets_nothing(tmp_path: Path) -> None:
    async def work(path: str, host: Host, server: asyncio.Server) -> None:
        with pytest.raises(ReplicaLostError):
            await SocketReplica("r0", path, "secrets").status()
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write((MAX_FRAME + 1).to_bytes(4, "big"))
        assert await reader.read() == b""

    with_host(tmp_path, work)


def test_who_goes_away_ends_the_call(tmp_path: Path) -> None:
    async def work(path: str, host: Host, server: asyncio.Server) -> None:
        run: Any = SocketReplica("r0", path, "secret").run({"count": 1, "wait": 60})
        assert await anext(run) == {"i": 0}
        await run.aclose()
        for _ in range(200):
            if host.ended:
                return
            await asyncio.sleep(0.01)
        pytest.fail("the call went on")

    with_host(tmp_path, work)


def test_a_replica_that_is_not_there_is_lost(tmp_path: Path) -> None:
    async def ask() -> None:
        with pytest.raises(ReplicaLostError):
            await SocketReplica("r0", str(tmp_path / "nothing"), "secret").status()

    asyncio.run(ask())


def test_messages_are_json_and_nothing_else() -> None:
    for data in (b"\x80\x04.", b"[1]", b"NaN"):
        with pytest.raises(ValueError):
            decode(data)


@pytest.mark.parametrize("replicas", ["0", "4:2", "many", "1:", "-1"])
def test_wrong_numbers_of_replicas_are_refused(replicas: str) -> None:
    with pytest.raises(ConfigError, match="replicas="):
        FleetSettings(replicas=replicas)
    assert FleetSettings(replicas="2").bounds == (2, 2)
    assert FleetSettings(replicas="1:4").bounds == (1, 4)
