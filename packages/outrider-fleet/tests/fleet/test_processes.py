"""Replicas as processes, killed under load. And what is said where Ray is not installed."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from outrider.errors import ConfigError
from outrider_fleet.ray.cluster import require_ray
from tests.model_folders import model_folder


@pytest.mark.slow
def test_processes_that_are_killed_and_replaced_lose_nothing(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "tiny", max_position_embeddings=1024)
    command = [sys.executable, "-m", "benchmarks.fleet", "-m", str(folder), "--requests", "300", "--clients", "12"]
    command += ["--distinct", "40", "--kill-every", "0.5", "--roll"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    result = json.loads(ran.stdout.splitlines()[-1])["fleet"][0]
    assert (result["requests"], result["lost"], result["different"]) == (300, 0, 0)
    assert result["reconciled"]
    assert result["kills"] >= 3  # two, then all are replaced, then one more


def test_without_ray_one_line_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'outrider\[scale\]', or use --fleet processes"):
        require_ray()


def test_a_router_that_ends_is_told_with_its_log() -> None:
    from benchmarks.fleet_routers import Router

    async def start() -> None:
        async with Router([sys.executable, "-c", "raise SystemExit('no such option')"], "cache_aware", []):
            pass

    with pytest.raises(SystemExit, match=r"(?s)exit code 1.*no such option"):
        asyncio.run(start())
