"""The soak (``make soak``) for a moment, in the test's own process."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from outrider.engine.engine import Engine
from tests.server.conftest import load
from tests.server.live import Live, wait_until
from tests.server.stress.crowd import crowd, reconcile
from tests.server.stress.faulty import Faults
from tests.server.stress.process import ORDINARY, metrics, open_files

PATH = "/v1/completions"


def test_a_crowd_leaves_nothing_behind(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Good, hostile and rude clients, and an engine that fails now and then."""
    timeouts: dict[str, Any] = {"header_timeout": 1.0, "body_timeout": 2.0, "keep_alive_timeout": 0.5}
    with Live(load(folder), max_queue=8, max_tokens=40, scheduling_policy="priority", **timeouts) as live:
        engine: Any = live.service.engine.llm.engine
        expected = live.post(PATH, ORDINARY)["choices"]
        asyncio.run(crowd(live.port, 16, 0.5, seed=1))  # until asyncio's pool has its threads
        wait_until(live.idle)
        before, open_before, threads = metrics(live.url), _open(live), threading.active_count()
        faults = Faults(every=0.2)
        for name in ("_score", "step"):
            monkeypatch.setattr(Engine, name, getattr(Engine, name))  # to be put back
        faults.install(Engine)
        faults.on = True
        seen = asyncio.run(crowd(live.port, 16, 2.0, seed=2))
        faults.on = False
        wait_until(live.idle)
        wait_until(lambda: _open(live) <= open_before)
        assert reconcile(seen, before, metrics(live.url), failures=True) == []
        assert seen.started > 20
        assert faults.count > 0
        engine.cache.check()
        assert threading.active_count() <= threads + (os.cpu_count() or 1) + 4
        assert live.post(PATH, ORDINARY)["choices"] == expected


def _open(live: Live) -> int:
    """Sockets but those of clients' idle connections, which close by themselves."""
    time.sleep(0.05)
    return open_files("self")["socket"] - len(live.server.server_state.connections)
