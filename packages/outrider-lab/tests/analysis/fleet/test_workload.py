"""Requests from distributions and from traces, and machines from files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outrider.errors import ConfigError, InvalidRequestError
from outrider.llm import LLM
from outrider_lab.cost import LatencyCurve
from outrider_lab.fleet_planning.costs.draft_model import SimulatedDraft
from outrider_lab.fleet_planning.costs.machine import Machine, from_dict, from_roofline, read_machine
from outrider_lab.fleet_planning.costs.measure import measure_machine
from outrider_lab.fleet_planning.options import FleetOptions
from outrider_lab.fleet_planning.simulation.run import Fleet
from outrider_lab.fleet_planning.simulation.simulate import simulate
from outrider_lab.fleet_planning.trace import read_trace
from outrider_lab.fleet_planning.workload import Lengths, Traffic, synthesize
from outrider_lab.roofline import HARDWARE, ModelSize
from tests.model_folders import model_folder

ROWS = [
    {"timestamp": 1500, "input_length": 700, "output_length": 20, "hash_ids": [1, 2]},
    {"timestamp": 500, "input_length": 512, "output_length": 10, "hash_ids": [1]},
    {"timestamp": 2500, "input_length": 1100, "output_length": 5, "hash_ids": [1, 2, 3]},
]


def trace(folder: Path, rows: list[Any]) -> Path:
    path = folder / "trace.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return path


def test_a_trace_shares_the_blocks_that_it_names(tmp_path: Path) -> None:
    workload = read_trace(trace(tmp_path, ROWS))
    assert workload.arrivals.tolist() == [0.0, 1.0, 2.0]
    assert workload.prompts.tolist() == [512, 700, 1100]
    assert workload.segments[1] == (("1", 512), ("2", 188))
    run = simulate(Fleet(machine=Machine(LatencyCurve({1: 0.001}))), workload)
    assert run.counts[0].reused == 512 + 688  # whole blocks


def test_turns_of_a_recorded_session_extend_each_other(tmp_path: Path) -> None:
    rows = [{"timestamp": i, "input_length": 100 * (i + 1), "output_length": 50, "session_id": "s"} for i in range(3)]
    workload = read_trace(trace(tmp_path, rows))
    assert workload.follows.tolist() == [-1, 0, 1]
    run = simulate(Fleet(machine=Machine(LatencyCurve({1: 0.1}))), workload)
    assert (run.arrived[1:] >= run.finished[:-1]).all()
    assert run.counts[0].reused == 144 + 240  # 149 and 249 tokens of earlier turns, in whole blocks


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "has no requests"),
        (["{"], "line 1 is not JSON"),
        (["[1]"], "line 1 is not an object"),
        ([ROWS[0], {"timestamp": 1, "output_length": 3}], "line 2: input_length=None"),
        ([{**ROWS[0], "hash_ids": 7}], "hash_ids=7"),
    ],
)
def test_a_wrong_trace_names_its_line(tmp_path: Path, rows: list[Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        read_trace(trace(tmp_path, rows))


@pytest.mark.parametrize("text", ["", "0", "a", "9-3", "1.5", "-4"])
def test_wrong_lengths_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="input_len"):
        Lengths.parse(text, "input_len")


def test_lengths_and_rates_are_those_asked_for() -> None:
    rng = np.random.default_rng(0)
    assert Lengths.parse("512:200", "x").draw(rng, 20_000).mean() == pytest.approx(512, rel=0.02)
    assert Lengths.parse("512:200", "x").draw(rng, 20_000).std() == pytest.approx(200, rel=0.05)
    assert set(Lengths.parse("3-5", "x").draw(rng, 100).tolist()) == {3, 4, 5}
    traffic = Traffic(rate=50, duration=60, turns=4, think_s=5, prefix_len=100)
    workload = synthesize(traffic)
    assert workload.rate == pytest.approx(50, rel=0.1)
    assert workload.arrivals[: len(workload) // 2].max() == pytest.approx(30, rel=0.1)  # from the first second on
    assert workload.prompts.max() > 2000  # turns hold those before
    short = synthesize(replace(traffic, max_context=1500))
    assert (short.prompts + short.outputs)[1:].max() < 3000
    assert all(sum(tokens for _, tokens in each) == n for each, n in zip(short.segments, short.prompts, strict=True))
    bursts = synthesize(replace(traffic, turns=1, burstiness=0.1))
    assert np.diff(bursts.arrivals).std() > 2 * np.diff(bursts.arrivals).mean()


def test_a_machine_is_written_and_read(tmp_path: Path) -> None:
    machine = from_roofline(ModelSize(8e9), HARDWARE["H100"], draft=ModelSize(1e9), alpha=0.7)
    again = from_dict(json.loads(json.dumps(machine.as_dict())))
    assert again.as_dict() == machine.as_dict()
    plan = {
        "target_ms_by_rows": {"1": 10.0, "2": 11.0},
        "sources": {"suffix": {"alpha": 0.6, "c": 0.1, "drafting_share": 0.5}},
        "recommended": {"source": "suffix", "k": 4},
    }
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan))
    draft = read_machine(path).draft
    assert draft is not None
    assert (draft.rates, draft.share) == ((0.6,), 0.5)
    assert draft.level_seconds(2) == pytest.approx(0.002)
    with pytest.raises(ConfigError, match="save-machine"):
        from_dict({"target_ms_by_rows": 3})
    with pytest.raises(InvalidRequestError, match="cannot be read"):
        read_machine(tmp_path / "none.json")


def test_drafts_shorten_as_the_batch_grows() -> None:
    machine = from_roofline(ModelSize(8e9), HARDWARE["H100"], draft=ModelSize(0.5e9), alpha=0.7)
    lengths = machine.draft_lengths
    assert lengths[1] > lengths[128] >= lengths[256]
    assert replace(machine, draft=SimulatedDraft("x", (0.5,), spec_length=3)).draft_lengths[7] == 3


def test_a_machine_is_measured_with_the_engine(tmp_path: Path) -> None:
    llm = LLM(str(model_folder(tmp_path / "model")), threads=1, max_batch_size=4, max_batched_tokens=64)
    words: list[str] = []
    machine = measure_machine(llm, draft="ngram", prompts=[[1, 2, 3] * 4] * 2, tick=words.append)
    assert machine.step_seconds(1, 1, 10) > 0
    assert machine.max_batch_size == llm.config.max_batch_size
    assert machine.draft is not None
    assert machine.draft.name == "ngram"
    assert "cost of a step" in words


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "request-rate"),
        ({"request_rate": 3.0}, "target-p99"),
        ({"request_rate": 3.0, "trace": "x", "replicas": 1}, "give one of them"),
    ],
)
def test_options_that_make_no_plan_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        FleetOptions(**given)
