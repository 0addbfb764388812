"""Few file descriptors and many connections: nobody is locked out, and the log stays small."""

from __future__ import annotations

import resource
import socket
import time
from pathlib import Path

import httpx
import pytest

from outrider_server.http.listening import connection_limit
from tests.server.stress.process import Process


def test_idle_connections_beyond_the_descriptors(folder: Path) -> None:
    """Four times as many as there can be: each retry used to write a thousand tracebacks."""
    with Process(str(folder), "--threads", "1", "--draft", "none", open_files=64) as server:
        server.wait_ready()
        idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(120)]
        for _ in range(5):
            with httpx.Client(base_url=server.url, timeout=30, verify=False) as client:
                assert client.get("/health").status_code == 200
            time.sleep(0.3)
        assert server.descriptors().total() <= 64
        for connection in idle:
            connection.close()
        log = server.log()
        assert len(log) < 10_000
        assert "Traceback" not in log
        assert "open files are limited to 64, so connections to 24, not 1024" in log
        assert server.stop() == 0


def test_the_soft_limit_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100, 5000]
    monkeypatch.setattr(resource, "getrlimit", lambda what: tuple(now))
    monkeypatch.setattr(resource, "setrlimit", lambda what, limits: now.__setitem__(slice(2), limits))
    assert connection_limit(1024) == 1024
    assert 1024 < now[0] < 1200
    assert now[1] == 5000
    assert connection_limit(100_000) == 5000 - 40
    assert connection_limit(10) == 10
