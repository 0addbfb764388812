"""Who is slow is cut off, all of them at once; and what is hidden in a request is none."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.server.attack.connections import BODY, STATUS, answered, get, is_right, post
from tests.server.attack.slow import SLOW, SMUGGLED, Slow
from tests.server.conftest import load
from tests.server.live import Live, wait_until
from tests.server.raw import connect, rest

TIMES: dict[str, Any] = {"header_timeout": 0.8, "body_timeout": 0.8, "keep_alive_timeout": 0.8, "write_timeout": 0.8}


@pytest.fixture(scope="module")
def hasty(folder: Path) -> Iterator[Live]:
    with Live(load(folder), max_connections=2000, **TIMES) as server:
        yield server


@pytest.fixture(scope="module")
def received(hasty: Live) -> dict[str, bytes]:
    """What each of ``SLOW`` got until it was cut off; all of them at once."""
    found: dict[str, bytes] = {}

    def drip(name: str, case: Slow) -> None:
        got = bytearray()
        with socket.create_connection(("127.0.0.1", hasty.port), timeout=0.05) as connection, suppress(ConnectionError):
            connection.sendall(case.first)
            end = time.monotonic() + 30
            while time.monotonic() < end:
                with suppress(TimeoutError):
                    if not (piece := connection.recv(65536)):
                        break
                    got += piece
                if case.drip:
                    connection.send(case.drip)
            else:
                got += b"never cut off"
        found[name] = bytes(got)

    threads = [threading.Thread(target=drip, args=each) for each in SLOW.items()]
    for thread in threads:
        thread.start()
    began = time.monotonic()
    hasty.post("/v1/completions", {"prompt": "hello", "max_tokens": 4})
    assert time.monotonic() - began < 20, "others go on"
    for thread in threads:
        thread.join(40)
    return found


@pytest.mark.parametrize("name", SLOW)
def test_who_drips_is_cut_off(received: dict[str, bytes], name: str) -> None:
    got = received[name]
    assert b"never cut off" not in got
    statuses = [int(status) for status in STATUS.findall(got)]
    assert is_right(statuses, SLOW[name].right), got[-300:]


@pytest.mark.parametrize("data", SMUGGLED.values(), ids=SMUGGLED)
def test_what_is_hidden_in_a_request_is_none(live: Live, data: bytes) -> None:
    """``/hidden`` would be a 404."""
    statuses, got = answered(live.port, data)
    assert 404 not in statuses, got[-300:]
    assert len([status for status in statuses if status != 100]) <= 1


def test_thousands_of_requests_ahead_are_answered_in_order_or_not_at_all(hasty: Live) -> None:
    paths = [("/health", b'"ok"'), ("/version", b'"version"')]
    with socket.create_connection(("127.0.0.1", hasty.port), timeout=20) as connection:
        sending = threading.Thread(target=lambda: suppressed(connection, 2000))
        sending.start()
        got = bytearray()
        with suppress(ConnectionError):
            while piece := connection.recv(65536):
                got += piece
        sending.join(20)
    statuses = STATUS.findall(bytes(got))
    assert set(statuses) == {b"200"}
    assert abs(got.count(paths[0][1]) - got.count(paths[1][1])) <= 1
    wait_until(hasty.idle)


def suppressed(connection: socket.socket, count: int) -> None:
    keep = [get(path).replace(b"Connection: close\r\n", b"") for path in ("/health", "/version")]
    with suppress(OSError):
        connection.sendall(b"".join(keep) * (count // 2))


def test_a_thousand_idle_connections_keep_nobody_out(hasty: Live) -> None:
    idle = [socket.create_connection(("127.0.0.1", hasty.port)) for _ in range(1000)]
    assert hasty.client.get("/health").status_code == 200
    wait_until(lambda: len(hasty.server.server_state.connections) <= 2)
    for each in idle:
        each.close()


@pytest.mark.parametrize("when", ["at once", "after the head", "after some events"])
def test_a_reset_in_the_middle_frees_the_place(live: Live, when: str) -> None:
    body = json.dumps({"prompt": "hello", "max_tokens": 900, "ignore_eos": True, "stream": True}).encode()
    with socket.create_connection(("127.0.0.1", live.port), timeout=20) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # closing resets
        connection.sendall(post(body=body))
        if when != "at once":
            connection.recv(15 if when == "after the head" else 4000)
    wait_until(live.idle)
    live.service.engine.llm.engine.cache.check()


def chunked(count: int, content: bytes) -> bytes:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    head += b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    size = -(-len(content) // count)
    pieces = [content[at : at + size] for at in range(0, len(content), size)]
    return head + b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


@pytest.mark.parametrize(
    ("count", "size", "status"),
    [(1, 60, 200), (2000, 2000, 200), (3000, 300_000, 200), (3000, 3000, 413), (20_000, 100_000, 413)],
)
def test_a_body_comes_in_as_many_chunks_as_it_can_need(live: Live, count: int, size: int, status: int) -> None:
    """Each costs the event loop some ten microseconds: bytes one by one stopped it for seconds."""
    body, received = BODY.ljust(size), b""
    with connect(live) as connection:
        with suppress(OSError):  # refused before all was sent
            connection.sendall(chunked(count, body))
        with suppress(ConnectionResetError):
            while piece := connection.recv(1 << 16):
                received += piece
    assert received.startswith(b"HTTP/1.1 %d " % status)
    assert (b"too many chunks" in received) is (status == 413)


def test_bodies_that_drip_keep_nobody_out(folder: Path) -> None:
    with Live(load(folder), max_connections=3) as server:
        head = post()[:-5]
        dripping = [connect(server) for _ in range(3)]
        for each in dripping:
            each.sendall(head)
        wait_until(lambda: len(server.server.server_state.connections) == 3)
        with connect(server) as connection:
            connection.sendall(get("/health"))
            assert rest(connection).startswith(b"HTTP/1.1 200 ")
        for each in dripping:
            each.close()
