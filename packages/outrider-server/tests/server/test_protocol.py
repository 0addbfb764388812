"""Connections at the level of bytes: sent ahead, half closed, ambiguous, dripping, never read."""

from __future__ import annotations

import json
import logging
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from outrider import LLM
from tests.server.conftest import load
from tests.server.live import Live, wait_until
from tests.server.raw import COMPLETIONS, ENDLESS, closed, connect, final, get, post, rest

SHORT: dict[str, Any] = {"prompt": "hello", "max_tokens": 3, "seed": 1}


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    """Lent to one server after another."""
    return load(folder)


@pytest.fixture
def server(llm: LLM) -> Iterator[Live]:
    with Live(llm, body_timeout=0.5, keep_alive_timeout=0.5, write_timeout=0.5) as live:
        yield live


def connections(server: Live) -> int:
    return len(server.server.server_state.connections)


def abandoned(server: Live, request: bytes, ahead: bytes) -> float:
    """Close a connection while its endless request runs. Returns how many requests ended before their time."""
    aborted = server.ended("abort")
    with connect(server) as connection:
        connection.sendall(request)
        wait_until(lambda: server.metric("num_requests_running") == 1)
        connection.sendall(ahead)
        time.sleep(0.05)  # so that it is read before the end is
    wait_until(server.idle)
    return server.ended("abort") - aborted


@pytest.mark.parametrize("ahead", [get("/health"), b"GET /he", b"\r\n", b"x" * 100_000], ids=range(4))
def test_what_is_sent_ahead_hides_no_disconnect(server: Live, ahead: bytes) -> None:
    assert abandoned(server, post(ENDLESS), ahead) == 1


def test_what_is_sent_ahead_is_answered_in_order(server: Live) -> None:
    with connect(server) as connection:
        connection.sendall(post(SHORT) + get("/version") + get("/health", "Connection: close"))
        received = rest(connection)
    assert received.count(b"HTTP/1.1 200 OK") == 3
    assert received.index(b'"choices"') < received.index(b'"version"') < received.index(b'"status"')


def test_what_is_sent_ahead_without_end_is_not_kept(server: Live) -> None:
    limit = server.settings.limits.max_header_bytes
    with connect(server) as connection:
        connection.sendall(post(ENDLESS | {"max_tokens": 400}))
        wait_until(lambda: server.service.sequences > 0)
        (protocol,) = server.server.server_state.connections
        for _ in range(64):
            connection.sendall(b"x" * (1 << 15))
            assert len(protocol.conn.trailing_data[0]) <= limit  # type: ignore[union-attr]
        assert b'"finish_reason":"length"' in rest(connection)


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("stream", [False, True])
def test_who_only_stops_sending_gets_the_answer(server: Live, version: str, stream: bool) -> None:
    expected = server.post(COMPLETIONS, SHORT)["choices"][0]["text"]
    with connect(server) as connection:
        connection.sendall(post(SHORT | {"stream": stream, "max_tokens": 3}, version=version))
        connection.shutdown(socket.SHUT_WR)
        received = rest(connection)
    head, _, body = final(received).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    if not stream:
        assert json.loads(body)["choices"][0]["text"] == expected
    else:
        assert b"[DONE]" in body


def test_who_only_stops_sending_gets_all_answers(server: Live) -> None:
    with connect(server) as connection:
        connection.sendall(post(SHORT) + post(SHORT) + get("/health"))
        connection.shutdown(socket.SHUT_WR)
        assert rest(connection).count(b"HTTP/1.1 200 OK") == 3


def test_who_stops_in_the_middle_of_a_body_is_let_go(server: Live) -> None:
    with connect(server) as connection:
        connection.sendall(post(SHORT)[:-5])
        connection.shutdown(socket.SHUT_WR)
        assert b"200" not in rest(connection)
    wait_until(server.idle)


AMBIGUOUS = {
    "length and chunks": (b"HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked", 400),
    "chunks and length": (b"HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 4", 400),
    "chunks before there were any": (b"HTTP/1.0\r\nTransfer-Encoding: chunked", 400),
    "another version": (b"HTTP/2.0\r\nContent-Length: 5", 400),
    "another coding": (b"HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked", 400),
    "two codings": (b"HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked", 400),
    "a space before the colon": (b"HTTP/1.1\r\nHost: a\r\nContent-Length : 5", 400),
    "a length with a sign": (b"HTTP/1.1\r\nHost: a\r\nContent-Length: +5", 400),
}


@pytest.mark.parametrize(("head", "status"), AMBIGUOUS.values(), ids=AMBIGUOUS)
def test_what_readers_disagree_about_is_refused(live: Live, head: bytes, status: int) -> None:
    with connect(live) as connection:
        connection.sendall(b"POST /tokenize " + head + b"\r\n\r\n0\r\n\r\n" + get("/version"))
        received = rest(connection)
    assert received.startswith(b"HTTP/1.1 %d " % status)
    assert b"onnection: close" in received.partition(b"\r\n\r\n")[0]
    assert received.count(b"HTTP/1.1 ") == 1, "what follows is no request"


def test_head_is_get_without_the_body(live: Live) -> None:
    paths = [*live.client.get("/openapi.json").json()["paths"], "/", "/playground/app.js", "/nothing", "/openapi.json"]
    for path in paths:
        asked, told = live.client.get(path), live.client.head(path)
        assert told.status_code == asked.status_code, path
        assert told.headers["content-type"] == asked.headers["content-type"], path
        if path != "/metrics":  # it counts these requests too
            assert told.headers["content-length"] == asked.headers["content-length"], path
        assert told.content == b""


def test_a_body_that_drips_behind_its_answer_is_cut_off(server: Live) -> None:
    with connect(server, 0.05) as connection:
        connection.sendall(b"POST /nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999\r\n\r\n")
        end = time.monotonic() + 10
        while not closed(connection) and time.monotonic() < end:
            connection.send(b"x")
        assert closed(connection)


def test_a_connection_whose_body_came_late_is_not_kept_for_ever(server: Live) -> None:
    with connect(server) as connection:
        connection.sendall(b"POST /nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 404")
        connection.sendall(b"x" * 9)
        assert closed(connection)


def test_a_refused_body_that_was_asked_for_first_ends_the_connection(live: Live) -> None:
    """Else its place would be taken by the next head."""
    with connect(live, live.settings.limits.keep_alive_timeout / 3) as connection:
        connection.sendall(post(SHORT, "Expect: 100-continue", path="/nothing").partition(b"\r\n\r\n")[0] + b"\r\n\r\n")
        received = rest(connection)
    assert received.startswith(b"HTTP/1.1 404 ")


def test_a_body_that_is_asked_for_first_is_read(server: Live) -> None:
    head, _, body = post(SHORT, "Expect: 100-continue").partition(b"\r\n\r\n")
    with connect(server) as connection:
        connection.sendall(head + b"\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 100 ")
        connection.sendall(body)
        assert connection.recv(1000).startswith(b"HTTP/1.1 200 ")


def test_who_reads_no_whole_answer_is_cut_off(server: Live) -> None:
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", server.port))
        connection.settimeout(1)
        while True:  # until the server reads no more either, or has cut us off
            try:
                connection.sendall(get("/openapi.json") * 100)
            except OSError:
                break
        wait_until(lambda: connections(server) == 0)
        assert server.metric("slow_readers_dropped_total") == 1


@pytest.mark.parametrize("closing", [(), ("Connection: close",)])
def test_an_empty_line_behind_a_body_harms_nothing(server: Live, closing: tuple[str, ...]) -> None:
    with connect(server) as connection:
        connection.sendall(post(SHORT | {"max_tokens": 100, "ignore_eos": True}, *closing))
        wait_until(lambda: server.service.sequences > 0)
        connection.sendall(b"\r\n")
        assert connection.recv(1 << 20).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("method", [b"GET", b"HEAD"])
def test_a_bad_body_where_none_is_read_is_no_failure(
    server: Live, method: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with connect(server) as connection:
        connection.sendall(method + get("/health", "Transfer-Encoding: chunked")[3:] + b"no chunk\r\n\r\n")
        received = rest(connection)
    assert received.startswith(b"HTTP/1.1 400 ")
    assert received.count(b"HTTP/1.1 ") == 1
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_a_handshake_that_never_comes_takes_no_place(llm: LLM, tmp_path: Path) -> None:
    authority = trustme.CA()
    cert = authority.issue_cert("127.0.0.1")
    cert.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "both.pem"))
    file = str(tmp_path / "both.pem")
    with Live(llm, ssl_certfile=file, ssl_keyfile=file, header_timeout=0.5) as server:
        with connect(server) as silent:
            assert closed(silent)
        trusting = ssl.create_default_context()
        authority.configure_trust(trusting)
        with trusting.wrap_socket(connect(server), server_hostname="127.0.0.1") as connection:
            connection.sendall(get("/health", "Connection: close"))
            assert connection.recv(1000).startswith(b"HTTP/1.1 200 ")


def test_a_head_whose_end_does_not_come_is_too_large(server: Live) -> None:
    with connect(server) as connection:
        connection.sendall(b"GET /" + b"a" * server.settings.limits.max_header_bytes)
        received = rest(connection)
    assert received.startswith(b"HTTP/1.1 431 ")
    assert b'"code":"headers_too_large"' in received
