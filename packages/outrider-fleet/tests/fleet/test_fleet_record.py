"""A record of a server over replicas is one of the model: it runs again on one engine."""

from __future__ import annotations

from pathlib import Path

import httpx

from outrider import LLM
from outrider.recording.records import read_record
from outrider_fleet.replica.engine_host import EngineHost
from outrider_server.replaying import other_model, replay
from tests.fleet.local import LocalBackend, fleet_server

BODY = {"prompt": "hello world and hello", "max_tokens": 12, "temperature": 0.8, "ignore_eos": True}


def test_a_fleet_s_record_runs_again(folder: Path, hosts: list[EngineHost], tmp_path: Path) -> None:
    file = tmp_path / "talk.jsonl"
    with fleet_server(folder, LocalBackend(hosts), record=str(file)) as (_, url):
        for _ in range(2):
            httpx.post(f"{url}/v1/completions", json=BODY, timeout=60).raise_for_status()
    recorded = list(read_record(file))
    with LLM(str(folder), draft="none", threads=1) as plain:
        assert other_model(plain, recorded) == []
        assert [(one.difference, one.left_out) for one in replay(plain, recorded)] == [(None, None)] * 2
