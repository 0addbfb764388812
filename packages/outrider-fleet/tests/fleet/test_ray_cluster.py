"""What our server does to a Ray cluster that others use, by a stand-in for Ray that says what it was told."""

from __future__ import annotations

import asyncio
import logging
import sys
from types import ModuleType
from typing import Any

import pytest

from outrider_fleet.ingress.pool import ReplicaPool
from outrider_fleet.ingress.routing import RoundRobinRouter
from outrider_fleet.ray.cluster import APPLICATION, RayBackend
from outrider_fleet.settings import FleetSettings
from outrider_server.settings import ServerSettings


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls of a cluster that serves an application of our name."""
    calls: list[str] = []
    ray, serve = ModuleType("ray"), ModuleType("ray.serve")

    def call(module: ModuleType, name: str, answer: Any = None) -> None:
        def noted(*args: Any, **options: Any) -> Any:
            calls.append(name)
            return answer

        setattr(module, name, noted)

    status: Any = ModuleType("status")
    status.applications = {APPLICATION: "RUNNING"}
    for name, answer in (("init", None), ("is_initialized", True), ("shutdown", None)):
        call(ray, name, answer)
    for name, answer in (("start", None), ("status", status), ("run", None), ("delete", None)):
        call(serve, name, answer)
    ray.serve = serve  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "ray.serve", serve)
    return calls


def test_an_application_that_is_there_is_neither_replaced_nor_deleted(
    told: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    fleet = FleetSettings(replicas="1", ray_address="10.0.0.7:6379")
    backend, codes = RayBackend(ServerSettings(), fleet, "m", {"threads": 1}), list[int]()

    async def start_and_close() -> None:
        await backend.start(ReplicaPool(RoundRobinRouter()), codes.append)
        await backend.close()

    with caplog.at_level(logging.ERROR):
        asyncio.run(start_and_close())
    assert codes == [1]
    assert "already serves an application named 'outrider'" in caplog.text
    assert "ray.init('10.0.0.7:6379'); serve.delete('outrider')" in caplog.text
    assert {"run", "delete"}.isdisjoint(told)
    assert told[-1] == "shutdown", "of the connection"
