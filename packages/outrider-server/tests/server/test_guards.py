"""Who is let in: keys, hosts, origins, certificates; and how large, how slow and how many they may be."""

from __future__ import annotations

import base64
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from outrider import LLM
from tests.server.conftest import load
from tests.server.live import Live, wait_until

COMPLETIONS = "/v1/completions"
KEY, OTHER = "sk-correct-horse", "sk-battery-staple"
ASK = {"prompt": "hello", "max_tokens": 2}
ENDLESS = {"prompt": "hello", "max_tokens": 900, "ignore_eos": True}


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    """Lent to one server after another."""
    return load(folder)


@pytest.fixture(scope="module")
def locked(llm: LLM, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    file = tmp_path_factory.mktemp("keys") / "keys"
    file.write_text(f"# ours\n\n{OTHER}\n")
    with Live(llm, api_keys=(KEY,), api_key_file=str(file), cors_origins=("https://app.example",)) as server:
        yield server


def basic(password: str) -> str:
    return "Basic " + base64.b64encode(f"anyone:{password}".encode()).decode()


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": f"Bearer {KEY}"},
        {"Authorization": f"bearer  {OTHER}"},
        {"X-Api-Key": KEY},
        {"Authorization": basic(KEY)},
    ],
)
def test_a_key_opens(locked: Live, headers: dict[str, str]) -> None:
    assert locked.client.post(COMPLETIONS, json=ASK, headers=headers).status_code == 200


BAD_KEYS: list[dict[str, Any]] = [
    {},
    {"Authorization": ""},
    {"Authorization": "Bearer"},
    {"Authorization": KEY},
    {"Authorization": f"Bearer {KEY[:-1]}"},
    {"Authorization": f"Bearer {KEY}x"},
    {"Authorization": f"Bearer {KEY.upper()}"},
    {"Authorization": f"Bearer {KEY} {OTHER}"},
    {"Authorization": "Bearer sk-cörrect-horse".encode()},
    {"Authorization": b"Bearer \xff\xfe\x80"},
    {"Authorization": f"Digest {KEY}"},
    {"Authorization": "Basic !!!"},
    {"Authorization": basic("")},
    {"X-Api-Key": ""},
    {"Authorization": "Bearer # ours"},
]


@pytest.mark.parametrize("headers", BAD_KEYS)
@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/", "/openapi.json", "/nothing", "/version"])
def test_everything_but_health_needs_a_key(locked: Live, headers: dict[str, Any], path: str) -> None:
    answer = locked.client.get(path, headers=headers)
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "invalid_api_key"
    assert answer.headers["www-authenticate"] == "Bearer"
    assert KEY not in answer.text
    assert locked.client.get("/health", headers=headers).status_code == 200


def test_a_browser_is_asked_for_the_key(locked: Live) -> None:
    answer = locked.client.get("/", headers={"Accept": "text/html,*/*"})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Basic ")
    assert locked.client.get("/", headers={"Authorization": basic(KEY)}).status_code == 200


def test_origins(locked: Live, live: Live) -> None:
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
    for origin, allowed in (("https://app.example", True), ("https://evil.example", False), ("null", False)):
        answer = locked.client.options(COMPLETIONS, headers={"Origin": origin} | asked)
        assert (answer.headers.get("access-control-allow-origin") == origin) == allowed
        assert "access-control-allow-credentials" not in answer.headers
    for sent, status in (
        ("authorization, content-type, x-stainless-lang, x-stainless-runtime-version, x-stainless-retry-count", 200),
        ("anthropic-dangerous-direct-browser-access, anthropic-version, x-api-key, x-stainless-timeout", 200),
        ("x-other", 400),
    ):  # as OpenAI's and Anthropic's clients ask from a page
        headers = {"Origin": "https://app.example"} | asked | {"Access-Control-Request-Headers": sent}
        assert locked.client.options(COMPLETIONS, headers=headers).status_code == status
    answer = live.client.options(COMPLETIONS, headers={"Origin": "https://app.example"} | asked)
    assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200),
        ("localhost:1234", 200),
        ("LOCALHOST", 200),
        ("[::1]:80", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("localhost.", 421),
        ("localhost@evil.example", 421),
        ("[::1]", 200),
        ("127.0.0.1:", 200),
        ("[::1", 421),
        ("[::1]evil.example", 421),
        ("[::1]:80:80", 421),
        ("[::1].evil.example", 421),
        ("::1", 421),
        ("localhost:evil.example", 421),
        ("localhost:80.evil.example", 421),
        ("localhost:80@evil.example", 421),
        ("localhost:80:80", 421),
        ("localhost:123456", 421),
        ("localhost:-1", 421),
        ("localhost:\u0661", 421),
        ("localhost/evil.example", 421),
        ("localhost, evil.example", 421),
        ("localhost\tevil.example", 421),
        ("localhost:80 evil.example", 421),
        ("user:x@localhost", 421),
        ("localhost.:80", 421),
        ("l\u00f6calhost", 421),
        ("", 421),
    ],
)
def test_a_server_for_this_machine_knows_its_names(live: Live, host: str, status: int) -> None:
    answer = live.client.get("/health", headers={b"Host": host.encode()})
    assert answer.status_code == status


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("GET http://evil.example/health HTTP/1.1\r\nHost: localhost", 404),  # RFC 9112, 3.2.2: that is the host
        ("GET http://localhost/health HTTP/1.1\r\nHost: evil.example", 421),
        ("GET //evil.example/health HTTP/1.1\r\nHost: localhost", 404),
        ("GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil.example", 400),
        ("GET /health HTTP/1.1\r\nHost: localhost\r\nhOST: localhost", 400),
        (
            "GET /health HTTP/1.1\r\nHost: localhost\r\n evil.example",
            400,
        ),  # folded: read by others as a line of its own
        ("GET /health HTTP/1.0\r\nX: y", 421),
        ("OPTIONS * HTTP/1.1\r\nHost: evil.example", 421),
    ],
)
def test_a_host_is_told_once_and_in_one_place(live: Live, head: str, status: int) -> None:
    with socket.create_connection(("127.0.0.1", live.port), timeout=10) as connection:
        connection.sendall(f"{head}\r\n\r\n".encode())
        assert connection.recv(4096).startswith(f"HTTP/1.1 {status} ".encode())


def raw(live: Live, data: bytes, *, wait: float = 10.0) -> bytes:
    """What the server answers to these bytes until it closes the connection."""
    with socket.create_connection(("127.0.0.1", live.port), timeout=wait) as connection:
        connection.sendall(data)
        received = b""
        while piece := connection.recv(65536):
            received += piece
    return received


@pytest.mark.parametrize(
    "data",
    [
        b"HELLO\r\n\r\n",
        b"GET / HTTP/1.1 twice\r\n\r\n",
        b"GET /health HTTP/1.1\r\n\r\n",  # without Host
        b"GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 70_000 + b"\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 20_000 + b"\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n{}",
        b"GET /\x00 HTTP/1.1\r\nHost: a\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS to a port without
    ],
    ids=lambda data: data[:40].decode("latin-1"),
)
def test_what_is_not_http_gets_one_answer(live: Live, data: bytes) -> None:
    answer = raw(live, data)
    assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 431 "))
    assert b'{"error":{"message":' in answer
    assert live.post(COMPLETIONS, ASK)["choices"]


def test_large_bodies_are_refused_before_and_while_they_come(llm: LLM) -> None:
    with Live(llm, max_body_bytes=1000, body_timeout=1.0) as server:
        big = b'{"prompt": "' + b"x" * 5000 + b'"}'
        kind = {"Content-Type": "application/json"}
        for content in (big, iter([big])):  # the second in pieces, without saying how long it is
            answer = server.client.post(COMPLETIONS, content=content, headers=kind)
            assert answer.status_code == 413
            assert answer.json()["error"]["code"] == "body_too_large"
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        assert raw(server, head + b"Content-Length: 99999999999999999999\r\n\r\n").startswith(b"HTTP/1.1 4")
        assert server.client.post(COMPLETIONS, json=ASK).status_code == 200


def test_a_body_in_small_pieces_is_measured_as_a_whole(llm: LLM) -> None:
    def pieces() -> Iterator[bytes]:
        for piece in (b'{"max_tokens": 2, "prompt": "hello"', b" " * 500, b" " * 500, b"}"):
            yield piece
            time.sleep(0.05)  # so that they arrive one by one

    with Live(llm, max_body_bytes=1000) as server:
        answer = server.client.post(COMPLETIONS, content=pieces(), headers={"Content-Type": "application/json"})
        assert answer.status_code == 413
        assert answer.json()["error"]["code"] == "body_too_large"


def test_a_client_names_its_request_only_harmlessly(live: Live) -> None:
    def name(given: str) -> str:
        headers = {b"X-Request-Id": given.encode("latin-1")}
        return live.client.get("/health", headers=headers).headers["x-request-id"]

    assert name("my-id_1.2") == "my-id_1.2"
    assert name("x" * 64) == "x" * 64
    for given in ("", "x" * 65, "two words", "a;b", "<b>", "%0d%0a", 'a"b', "\xe9\xff"):
        assert re.fullmatch("[0-9a-f]{32}", name(given)), given


def test_slow_senders_are_cut_off(llm: LLM) -> None:
    with Live(llm, header_timeout=0.4, body_timeout=0.4, keep_alive_timeout=1.0) as server:
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        assert raw(server, b"").startswith(b"HTTP/1.1 408 ")
        assert raw(server, head[:30]).startswith(b"HTTP/1.1 408 ")
        assert raw(server, head + b"Content-Length: 50\r\n\r\n{").startswith(b"HTTP/1.1 408 ")
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
            began = time.monotonic()
            for byte in head * 3:  # slowloris: always a little more
                try:
                    connection.sendall(bytes([byte]))
                except OSError:
                    break
                time.sleep(0.02)
            assert time.monotonic() - began < 5
        second = head + b"Content-Length: 2\r\n\r\n{}" + b"GET /hea"
        answers = raw(server, second)
        assert b"HTTP/1.1 400 " in answers
        assert b"HTTP/1.1 408 " in answers


def test_no_more_connections_than_allowed(llm: LLM) -> None:
    with Live(llm, max_connections=2, header_timeout=30.0) as server:
        wait_until(lambda: not server.server.server_state.connections)
        body = json.dumps(ENDLESS).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        busy = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(2)]
        for connection in busy:
            connection.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        wait_until(lambda: server.service.sequences == 2)
        answer = raw(server, b"")
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"too_many_connections" in answer
        assert b"Retry-After: 1" in answer
        for connection in busy:
            connection.close()
        wait_until(lambda: not server.server.server_state.connections)
        assert server.client.post(COMPLETIONS, json=ASK).status_code == 200


def test_idle_connections_keep_nobody_out(llm: LLM) -> None:
    """The oldest of the client with most of them gives way."""
    with Live(llm, max_connections=8, header_timeout=30.0) as server:
        idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(30)]
        assert server.client.post(COMPLETIONS, json=ASK).status_code == 200
        assert len(server.server.server_state.connections) <= 9
        assert idle[0].recv(100) == b""
        for connection in idle:
            connection.close()


def test_a_full_queue_says_when_to_come_again(llm: LLM) -> None:
    with Live(llm, max_queue=0) as server:
        threads = [
            threading.Thread(
                target=server.client.post, args=(COMPLETIONS,), kwargs={"json": ENDLESS | {"n": 4, "max_tokens": 300}}
            )
        ]
        threads[0].start()
        wait_until(lambda: server.service.sequences == 4)
        answer = httpx.post(server.url + COMPLETIONS, json=ASK)
        assert answer.status_code == 429
        assert answer.json()["error"]["type"] == "rate_limit_error"
        assert 1 <= int(answer.headers["retry-after"]) <= 60
        threads[0].join()
        assert server.client.post(COMPLETIONS, json=ASK).status_code == 200
        assert server.metric("requests_rejected_total") == 1
        too_many = server.client.post(COMPLETIONS, json=ASK | {"n": 5})
        assert too_many.status_code == 400, "it would never fit"


def test_a_request_that_takes_too_long_ends(llm: LLM) -> None:
    with Live(llm, request_timeout=0.05) as server:
        answer = server.client.post(COMPLETIONS, json=ENDLESS)
        assert answer.status_code == 504
        assert answer.json()["error"]["code"] == "timeout"
        wait_until(server.idle)
