"""Adapters and beams over replicas: as from one engine, whichever replica serves, and when one dies."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from outrider import LLM
from outrider_fleet.ingress.front import Front
from outrider_fleet.replica.engine_host import EngineHost
from outrider_server.fingerprint import fingerprint
from tests.fleet.local import LocalBackend, fleet_server, load_hosts
from tests.model_folders import model_folder
from tests.server.live import Live
from tests.test_adapters import adapter

BODY = {"prompt": "hello world and hello", "max_tokens": 20, "temperature": 0, "ignore_eos": True}
BEAMS = {"use_beam_search": True, "beam_width": 3, "n": 2, "max_tokens": 12}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters")
    model_folder(folder / "base")
    for seed, name in enumerate("ab"):
        adapter(folder / name, folder / "base", seed=seed)
    return folder


@pytest.fixture(scope="module")
def modules(home: Path) -> dict[str, str]:
    return {name: str(home / name) for name in "ab"}


@pytest.fixture(scope="module")
def hosts(home: Path, modules: dict[str, str]) -> Iterator[list[EngineHost]]:
    made = load_hosts(home / "base", 2, lora_modules=modules)
    yield made
    for host in made:
        host.close()


def test_adapters_and_beams_are_served_as_by_one_engine(
    home: Path, modules: dict[str, str], hosts: list[EngineHost]
) -> None:
    def ask(url: str) -> list[Any]:
        choices = []
        for model in ("tiny", "a", "b"):
            for more in ({}, BEAMS):
                answer = httpx.post(f"{url}/v1/completions", json=BODY | more | {"model": model}, timeout=60)
                assert answer.status_code == 200, answer.text
                choices.append([(each["text"], each.get("score")) for each in answer.json()["choices"]])
        return choices

    lives = itertools.cycle([5, 9, 14])
    with Live(LLM(str(home / "base"), draft="none", threads=1, lora_modules=modules), "tiny") as live:
        alone = ask(live.url)
    with fleet_server(home / "base", LocalBackend(hosts, lambda: next(lives))) as (server, url):
        assert ask(url) == alone
        for path in ("/v1/models/a", "/props", "/slots", "/api/tags", "/api/ps", "/version", "/health"):
            answer = httpx.get(f"{url}{path}")
            assert answer.status_code == 200, (path, answer.text)
        assert httpx.post(f"{url}/api/show", json={"model": "tiny"}).status_code == 200
        listed = {model["id"] for model in httpx.get(f"{url}/v1/models").json()["data"]}
    assert server.fleet.pool.lost >= 2
    assert listed == {"tiny", "a", "b"}
    assert len({str(choice) for choice in alone}) == 6, "the adapters change nothing, so nothing was tested"


def test_what_adapters_hold_is_part_of_a_replicas_identity(home: Path, hosts: list[EngineHost]) -> None:
    with LLM(str(home / "base"), draft="none", threads=1, lora_modules={"a": str(home / "b")}) as other:
        assert fingerprint(other) != hosts[0].description()["fingerprint"]


def test_caches_of_adapters_have_names_of_their_own_for_routing(home: Path, hosts: list[EngineHost]) -> None:
    front = Front(str(home / "base"), hosts[0].description())
    keys = {front.adapters.keys[name] for name in front.adapters.names}
    assert len(keys) == 2
    assert keys == set(hosts[0].description()["adapters"].values())
