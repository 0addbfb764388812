"""Both ends of a replica's socket against bytes that are no message, and against a shortage of their own."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from outrider.errors import InvalidRequestError
from outrider_fleet.messages.replica import ReplicaLostError
from outrider_fleet.messages.wire import Message
from outrider_fleet.replica import sockets
from outrider_fleet.replica.sockets import SocketHost, SocketReplica
from tests.fleet.test_sockets import Host, with_host


def frame(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def told(**message: Any) -> bytes:
    return frame(json.dumps(message).encode())


FROM_STRANGERS: dict[str, bytes] = {
    "nothing": b"",
    "half a length": b"\0\0",
    "an empty frame": frame(b""),
    "half a frame": frame(b"{}" * 50)[:-10],
    "a frame of 4 GB": b"\xff" * 4,
    "HTTP": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "a pickle": frame(b"\x80\x04\x95."),
    "a list": frame(b"[]"),
    "a number": frame(b"1"),
    "no UTF-8": frame(b"\xff\xfe{}"),
    "a deep nest": frame(b"[" * 100_000),
    "a deep object": frame(b'{"a":' * 100_000),
    "a number of 10,000 digits": frame(b'{"token":' + b"9" * 10_000 + b"}"),
    "no token": told(op="status"),
    "another token": told(op="status", token="secreT"),
    "a token and more": told(op="status", token="secret\0"),
    "a token that is a list": told(op="status", token=["secret"]),
    "a token of half a character": told(op="status", token="\ud800"),
    "a token of none": told(op="status", token=None),
    "no operation": told(token="secret"),
    "an operation that is a list": told(op=["run"], token="secret"),
    "a run of nothing": told(op="run", token="secret"),
}


@pytest.mark.parametrize("data", FROM_STRANGERS.values(), ids=FROM_STRANGERS)
def test_a_replica_answers_no_stranger(tmp_path: Path, caplog: pytest.LogCaptureFixture, data: bytes) -> None:
    async def work(path: str, host: Host, server: asyncio.Server) -> None:
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(data)
        writer.write_eof()
        answer = await asyncio.wait_for(reader.read(), 20)
        assert b"alive" not in answer
        writer.close()
        assert await SocketReplica("r0", path, "secret").status() == {"alive": True}
        while len(asyncio.all_tasks()) > 1:
            await asyncio.sleep(0.001)

    with_host(tmp_path, work)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


FROM_REPLICAS: dict[str, bytes] = {
    "nothing": b"",
    "half a length": b"\0",
    "half a frame": frame(b"{}" * 50)[:-1],
    "a frame of 4 GB": b"\xff" * 4,
    "HTTP": b"HTTP/1.1 200 OK\r\n\r\n",
    "a list": frame(b"[1]"),
    "no JSON": frame(b"{'a': 1}"),
    "no UTF-8": frame(b'{"a": "\xff"}'),
    "a deep nest": frame(b"[" * 100_000),
    "a number of 10,000 digits": frame(b'{"i":' + b"9" * 10_000 + b"}"),
}


@pytest.mark.parametrize("data", FROM_REPLICAS.values(), ids=FROM_REPLICAS)
def test_a_replica_that_sends_no_messages_is_lost(tmp_path: Path, data: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(4)
        writer.write(data)
        writer.close()

    async def ask() -> None:
        path = str(tmp_path / "r0")
        server = await asyncio.start_unix_server(serve, path)
        replica = SocketReplica("r0", path, "secret")
        with pytest.raises(ReplicaLostError, match="r0: "):
            await replica.status()
        with pytest.raises(ReplicaLostError, match="r0: "):
            async for _ in replica.run({}):
                pass
        server.close()

    asyncio.run(ask())


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EAGAIN])
def test_a_shortage_of_the_ingress_is_no_loss_of_a_replica(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    opened, tries = asyncio.open_unix_connection, list[int]()

    async def short(*args: Any, **options: Any) -> Any:
        tries.append(1)
        if len(tries) < 4:
            raise OSError(number, "there is none")
        return await opened(*args, **options)

    async def work(path: str, host: Host, server: asyncio.Server) -> None:
        monkeypatch.setattr(asyncio, "open_unix_connection", short)
        assert await SocketReplica("r0", path, "secret").status() == {"alive": True}

    monkeypatch.setattr(sockets, "PAUSE", 0.01, raising=False)
    with_host(tmp_path, work)
    assert len(tries) == 4


def test_a_call_waits_for_a_replica_whose_queue_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "WAITING", 1, raising=False)
    monkeypatch.setattr(sockets, "PAUSE", 0.01, raising=False)

    async def ask() -> None:
        path, host = str(tmp_path / "r0"), SocketHost(str(tmp_path / "r0"), "secret")
        host.host.set_result(Host())  # type: ignore[arg-type]
        server = await host.listen()
        replica = SocketReplica("r0", path, "secret")
        assert await asyncio.gather(*(replica.status() for _ in range(300))) == [{"alive": True}] * 300
        server.close()

    asyncio.run(ask())


def test_a_request_too_large_to_send_costs_no_replica(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(path: str, host: Host, server: asyncio.Server) -> None:
        with pytest.raises(InvalidRequestError, match="longer than 500"):
            async for _ in SocketReplica("r0", path, "secret").run({"count": 1, "wait": 0, "more": "x" * 1000}):
                pass

    monkeypatch.setattr(sockets, "MAX_FRAME", 500)
    with_host(tmp_path, work)


def test_an_answer_too_large_to_send_is_an_error_of_its_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(self: Host, message: Message) -> AsyncGenerator[Message]:
        yield {"more": "x" * 1000}

    async def work(path: str, host: Host, server: asyncio.Server) -> None:
        (part,) = [part async for part in SocketReplica("r0", path, "secret").run({})]
        assert part["error"]["kind"] == "InvalidRequestError"

    monkeypatch.setattr(Host, "run", run)
    monkeypatch.setattr(sockets, "MAX_FRAME", 500)
    with_host(tmp_path, work)
