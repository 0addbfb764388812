"""What would keep the ingress from passing on tokens happens beside its loop, or before it serves."""

from __future__ import annotations

import asyncio
import gc
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from outrider_fleet.ingress import server as ingress
from outrider_fleet.ingress.front import Front
from outrider_fleet.replica import main as replica_main
from outrider_fleet.settings import FleetSettings
from outrider_server.settings import ServerSettings
from tests.fleet.local import LocalBackend, fleet_server, load_hosts
from tests.model_folders import model_folder

SIZES = {"first": 2, "second": 3}


def test_a_tokenizer_is_loaded_beside_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also that of a new version, while streams of the old one run."""
    folder = model_folder(tmp_path)
    hosts, loops = load_hosts(folder, 2), list[Any]()

    def front(model: str, description: dict[str, Any]) -> Front:
        loops.append(asyncio._get_running_loop())
        return Front(model, description)

    monkeypatch.setattr(ingress, "Front", front)
    with fleet_server(folder, LocalBackend(hosts)) as (_, url):
        assert httpx.get(f"{url}/health").status_code == 200
    for host in hosts:
        host.close()
    assert loops == [None], "once for both replicas, on a thread without a loop"


def test_a_second_version_does_not_replace_the_first_while_its_tokenizer_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = [load_hosts(model_folder(tmp_path / name, **{"num_hidden_layers": n}), 1)[0] for name, n in SIZES.items()]
    fronts: list[str] = []

    def front(model: str, description: dict[str, Any]) -> Front:
        fronts.append(model)
        time.sleep(0.3)  # in which the other one becomes ready
        return Front(model, description)

    monkeypatch.setattr(ingress, "Front", front)
    with fleet_server(tmp_path / "first", LocalBackend(hosts)) as (_, url):
        time.sleep(0.5)
        assert httpx.get(f"{url}/health").status_code == 200
    for host in hosts:
        host.close()
    assert len(fronts) == 1


def test_ingress_and_replicas_keep_what_is_loaded_from_the_search_for_garbage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen: list[str] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append("here"))
    monkeypatch.setattr(ingress, "configure", lambda settings: None)
    ingress.prepare(ServerSettings(), FleetSettings(replicas="2"), {})
    assert len(frozen) == 1
    given = {"model": str(model_folder(tmp_path)), "name": "r0", "shares": True, "options": {"threads": 1}}
    replica_main._load(given).close()
    assert len(frozen) == 2
