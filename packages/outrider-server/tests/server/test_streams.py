"""Streams on the wire: readers that leave, readers that do not read, and what timing and size give away."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from outrider import LLM
from tests.server.conftest import load
from tests.server.live import Live, events, wait_until

PATH = "/v1/completions"
ENDLESS: dict[str, Any] = {"prompt": "hello", "max_tokens": 900, "ignore_eos": True, "seed": 1, "stream": True}


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return load(folder)


@pytest.fixture
def server(llm: LLM) -> Iterator[Live]:
    with Live(llm) as live:
        yield live


def _running(server: Live, count: int) -> bool:
    """Whether the engine runs them: who leaves before, while the prompt is read, leaves no sequence to count."""
    return server.metric("num_requests_running") == count


def test_who_leaves_frees_the_place_within_a_step(server: Live) -> None:
    stats = server.service.engine.llm.engine.stats
    for body, count in ((ENDLESS | {"n": 3}, 3), (ENDLESS | {"stream": False}, 1)):
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            _send(connection, body)
            wait_until(partial(_running, server, count))
        left, steps = time.monotonic(), stats.steps
        wait_until(server.idle)
        assert stats.steps - steps < 50, "of the 900 that were asked for"
        assert time.monotonic() - left < 5
    wait_until(lambda: server.metric("request_success_total", finished_reason="abort") == 4)
    cache = server.service.engine.llm.engine.cache
    cache.check()
    assert server.post(PATH, ENDLESS | {"stream": False, "max_tokens": 3})["usage"]["completion_tokens"] == 3


def test_leaving_complains_of_nothing(server: Live, caplog: pytest.LogCaptureFixture) -> None:
    """Chunks are closed in order, whatever the stream was waiting for."""
    for wait in (0.0, 0.02, 0.1):
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            _send(connection, ENDLESS)
            wait_until(lambda: server.service.sequences > 0)
            time.sleep(wait)
        wait_until(server.idle)
    assert [record for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")] == []


def test_who_waits_in_the_queue_and_leaves_is_never_run(server: Live) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as first:
        _send(first, ENDLESS | {"n": 4})
        wait_until(partial(_running, server, 4))
        with socket.create_connection(("127.0.0.1", server.port)) as second:
            _send(second, ENDLESS)
            wait_until(lambda: server.metric("num_requests_waiting") == 1)
        wait_until(lambda: server.service.sequences == 4)
        wait_until(lambda: server.metric("request_success_total", finished_reason="abort") == 1)  # counted just after
    wait_until(server.idle)
    assert server.metric("request_success_total", finished_reason="abort") == 5
    assert server.metric("request_queue_time_seconds_count") == 4, "the four that ran, and not the one that waited"


def _send(connection: socket.socket, body: dict[str, Any]) -> None:
    data = json.dumps(body).encode()
    head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(data)}"
    connection.sendall(head.encode() + b"\r\n\r\n" + data)


def test_a_reader_that_takes_nothing_is_cut_off(llm: LLM) -> None:
    with Live(llm, write_timeout=0.3, stream_padding=1 << 16) as server:
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect(("127.0.0.1", server.port))
            _send(connection, ENDLESS)
            wait_until(lambda: server.metric("slow_readers_dropped_total") == 1)
            wait_until(server.idle)
        assert server.post(PATH, ENDLESS | {"stream": False, "max_tokens": 2})["choices"]


def test_a_reader_too_far_behind_is_dropped(llm: LLM) -> None:
    with Live(llm, max_backlog=30, stream_padding=1 << 16) as server, socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", server.port))
        _send(connection, ENDLESS)
        wait_until(partial(_running, server, 1))
        wait_until(lambda: not server.service.engine.llm.engine.busy, 60)
        received, recent = bytearray(), b""
        while b"[DONE]" not in recent and (piece := connection.recv(1 << 20)):
            received += piece
            recent = recent[-8:] + piece
        assert b"wait unread" in received
    assert server.service.sequences == 0


def test_padding_hides_the_size_of_each_event(llm: LLM) -> None:
    with Live(llm, stream_padding=512) as server:
        with server.client.stream("POST", PATH, json=ENDLESS | {"max_tokens": 30}) as answer:
            pieces = list(answer.iter_raw())
        assert all(len(piece) % 512 == 0 for piece in pieces)
        assert len(events(iter([b"".join(pieces).decode()]))) >= 10


def test_a_client_can_ask_for_padding(server: Live) -> None:
    body = ENDLESS | {"max_tokens": 10, "stream_options": {"include_obfuscation": True}}
    with server.client.stream("POST", PATH, json=body) as answer:
        assert all(len(piece) % 64 == 0 for piece in answer.iter_raw())


def test_an_interval_hides_the_time_of_each_token(llm: LLM) -> None:
    whole = {"stream": False}
    with Live(llm, stream_interval=0.15) as server:
        began, times = time.monotonic(), []
        with server.client.stream("POST", PATH, json=ENDLESS | {"max_tokens": 300}) as answer:
            pieces = []
            for piece in answer.iter_raw():
                times.append(time.monotonic() - began)
                pieces.append(piece)
        chunks = events(iter([b"".join(pieces).decode()]))
        text = "".join(c["text"] for chunk in chunks for c in chunk["choices"])
        assert text == server.post(PATH, ENDLESS | whole | {"max_tokens": 300})["choices"][0]["text"]
        assert len(times) <= (times[-1] - times[0]) / 0.15 + 2
        assert len(times) < len(chunks)


def test_a_failure_before_the_first_token_has_a_proper_status(server: Live) -> None:
    answer = httpx.post(server.url + PATH, json=ENDLESS | {"prompt": [99999]})
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/json"


def test_a_time_that_is_up_before_the_first_token_has_a_proper_status(llm: LLM) -> None:
    """The stream has been asked for its first chunk by then, but nothing has been sent."""
    with Live(llm, request_timeout=1e-6) as server:
        answer = server.client.post(PATH, json=ENDLESS)
        assert answer.status_code == 504
        assert answer.json()["error"]["code"] == "timeout"
        wait_until(server.idle)
