"""The training loop of ``benchmarks.rollouts``, and the times of many rollouts, on the laboratory's target."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import rollouts
from outrider.native.library import library
from tests.paths import LAB

pytestmark = [pytest.mark.slow, pytest.mark.skipif(library() is None, reason="no native library here")]
TARGET = str(LAB / "target")


def test_our_second_pass_has_the_sampler_s_bits_and_the_usual_one_has_not(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    picture = tmp_path / "rollouts.png"
    given = ["--steps", "3", "-n", "2", "--max-tokens", "8", "--lr", "1e-3", "--plot", str(picture)]
    rollouts.main(["train", TARGET, *given])
    steps = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [step["ours_different"] for step in steps] == [0, 0, 0]
    assert all(step["usual_different"] > step["tokens"] / 2 for step in steps)
    assert steps[0]["usual_mean"] < 0.05  # the weights are the same: what differs is rounding
    assert 0 < picture.stat().st_size < 20_000


def test_rollouts_are_the_same_at_once_and_one_by_one(capsys: pytest.CaptureFixture[str]) -> None:
    rollouts.main(["speed", TARGET, "-n", "4", "--max-tokens", "8", "--alone", "2", "--raw"])  # raises if one differs
    found = json.loads(capsys.readouterr().out)
    assert found["equal, first"]
    assert found["equal, second"]
    read = found["none, first"]
    assert read["cached prompt tokens"] == [0, *[read["prompt tokens"] - 1] * 2]  # the prompt was read once
