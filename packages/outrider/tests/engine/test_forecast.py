"""Forecasts of memory and speed: from bytes, rates and the record of this machine, and compared with what came."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from outrider.cli import doctor
from outrider.cli.check import check_model
from outrider.cli.check_lines import check_lines, picture
from outrider.cli.main import app
from outrider.engine.forecast import USUAL_FACTOR, Forecast, measured_with_drafts
from outrider.engine.pass_times import passes_over_limits
from outrider.models.experts import Experts
from outrider.native.library import library
from outrider.native.measure import MachineRates
from outrider.native.processor import num_threads, processor_name
from outrider.weights.hf_config.config import parse_config
from outrider.weights.hub.catalog import gguf_folder
from outrider.weights.packed import packed_folder
from tests.weights.files import raw_config, write_gguf

CONFIG = parse_config(raw_config())
SIZES = {"model.layers.0.mlp.up_proj": 6_000, "model.layers.1.mlp.up_proj": 6_000, "lm_head": 4_000}
RATES = MachineRates(1.0, 1e9)  # multiplying costs nothing


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    library()  # from the real cache, where it is compiled already
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("outrider.cli.check.measure_rates", lambda _: MachineRates(10.0, 100.0))  # takes half a second
    return tmp_path / "cache"


def test_a_step_takes_its_parts() -> None:
    forecast = Forecast.of(CONFIG, SIZES, 0, RATES, 1.5)
    token = 2 * 2 * 2 * 16 * 2  # layers, keys and values, heads, their dimensions, bytes
    parts = forecast.parts(100)
    assert parts == {
        "layers": pytest.approx(1.5 * 12e-6),
        "attention": pytest.approx(1.5 * 100 * token * 1e-9),
        "lm_head": pytest.approx(1.5 * 4e-6),
    }
    assert forecast.step(100) == pytest.approx(sum(parts.values()))
    slow = replace(forecast, rates=MachineRates(1.0, 1e-3))
    assert slow.step(0, 8) == pytest.approx(8 * slow.step(0, 1))  # multiplying is all that counts


def test_a_window_bounds_attention() -> None:
    config = replace(CONFIG, sliding_window=32, window_layers=(True, False))
    forecast = Forecast.of(config, SIZES, 0, RATES, 1.0)
    assert forecast.attention_bytes(132) - forecast.attention_bytes(32) == 100 * 2 * 2 * 16 * 2


def test_rows_share_experts() -> None:
    config = replace(CONFIG, experts=Experts(count=8, used=2, size=16, normalised=True))
    sizes = {"model.layers.0.self_attn.q_proj": 100, "model.layers.0.mlp.experts.0.up_proj": 800, "lm_head": 10}
    forecast = Forecast.of(config, sizes, 0, RATES, 1.0)
    assert [forecast.bytes_read(rows) for rows in (1, 2, 200)] == [310, 110 + 350, 910]


def test_drafts_pay_by_their_acceptance() -> None:
    forecast = Forecast.of(CONFIG, SIZES, 0, RATES, 1.0)
    plain = 1 / forecast.step(64)
    speed, length = forecast.with_drafts(0.5, 64)
    assert speed == pytest.approx(plain * (2 - 0.5**16))
    assert length == 16
    speed, length = forecast.with_drafts(0.0, 64)
    assert speed == pytest.approx(plain)
    assert length == 0
    dear = Forecast.of(CONFIG, SIZES, 40_000, RATES, 1.0)  # a draft token costs more than a step does
    assert dear.with_drafts(0.5, 64)[1] == 0
    measured = measured_with_drafts({"1": 10.0, "4": 12.0, "16": 100.0}, 0.0)
    assert measured[2] == {"acceptance": 0.9, "tokens_per_s": round(3.439 / 0.012, 2), "draft_tokens": 3}


def keep(cache: Path, name: str, **changes: Any) -> None:
    """Write the times of an earlier start."""
    times = [[[64, 1], 0.15], [[0, 8], 1]]
    said = {"processor": processor_name(), "threads": num_threads(), "bytes": 10**9, "times": times}
    place = cache / "timings" / "models" / f"{name}.json"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(json.dumps(said | changes))


def test_the_factor_is_that_of_models_measured_here(cache: Path) -> None:
    assert passes_over_limits(10.0, "own") == []
    keep(cache, "one")
    keep(cache, "own", times=[[[64, 1], 9]])
    keep(cache, "other machine", processor="another")
    keep(cache, "other threads", threads=num_threads() + 1)
    keep(cache, "tiny", bytes=1000)
    keep(cache, "old", bytes=None)
    keep(cache, "damaged", times=5)
    assert passes_over_limits(10.0, "own") == [pytest.approx(1.5)]


def test_a_check_forecasts_and_tells_its_error(tmp_path: Path, cache: Path) -> None:
    write_gguf(tmp_path / "m.gguf")
    facts = check_model(str(tmp_path / "m.gguf"))
    forecast = facts["forecast"]
    assert (forecast["factor"], forecast["factor_from_models"]) == (USUAL_FACTOR, 0)
    assert "error" not in forecast
    assert [step["context"] for step in forecast["steps"]] == [64, 128]
    assert "no model has been measured here" in "\n".join(check_lines(facts))
    shown = "\n".join(picture(forecast))
    assert "a step behind 128 tokens takes" in shown
    assert "reading weights" in shown
    name = packed_folder(gguf_folder(tmp_path / "m.gguf")).name
    keep(cache, name, times=[[[64, 1], 1.0], [[64, 4], 1.5]])
    facts = check_model(str(tmp_path / "m.gguf"))
    assert facts["forecast"]["error"] == round(1000 / facts["forecast"]["steps"][0]["ms"] - 1, 3)
    assert facts["forecast"]["with_drafts"][2]["tokens_per_s"] == round(3.439 / 1.5, 2)
    assert "; measured steps took +" in "\n".join(check_lines(facts))


def test_doctor_forecasts_before_it_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"native_library": "cache", "read_gb_s": 10.0, "int8_gmac_s": 100.0, "threads_compared": []}
    monkeypatch.setattr(doctor, "examine", lambda *_: known | {"batch_invariance": []})
    write_gguf(tmp_path / "m.gguf")
    command = ["doctor", "--model", str(tmp_path / "m.gguf")]
    shown = CliRunner().invoke(app, [*command, "--no-load"], catch_exceptions=False).stdout
    assert shown.index("forecast") < shown.index("a step behind 64 tokens") < shown.index("native library")
    assert "Memory for" not in shown
    loaded = json.loads(CliRunner().invoke(app, [*command, "--json"], catch_exceptions=False).stdout)
    error = loaded["run_times"][0]["ms"] / loaded["check"]["forecast"]["steps"][0]["ms"] - 1
    assert loaded["forecast_error"] == round(error, 3)
