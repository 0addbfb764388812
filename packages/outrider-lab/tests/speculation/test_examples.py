"""The worked examples at a small scale: the same values with guesses as without, and fewer waits."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.paths import ROOT


def program(name: str) -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "examples" / f"speculate_{name}.py"))


@pytest.fixture(autouse=True)
def one_seed_for_all() -> Any:
    """Training takes torch's own random numbers: leave them as they were."""
    import torch

    state = torch.get_rng_state()
    yield
    torch.set_rng_state(state)


def test_images(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    names = program("images")
    pairs = names["main"](count=1, steps=40)
    for plain, drafted in pairs:
        assert drafted.values == plain.values
        assert drafted.report.rounds < plain.report.rounds / 2
    assert "the same image" in capsys.readouterr().out
    names["draw"](pairs, str(tmp_path / "picture.png"))
    assert (tmp_path / "picture.png").stat().st_size > 1000


def test_series(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    names = program("series")
    found = names["main"](length=150, steps=150)
    assert found["matched"].values == found["plain"].values
    for run in (found["matched"], found["rejected"]):
        assert run.report.rounds < 150
        assert names["p_value"](found["f"], found["start"], run.values) > 0.01
    wrong = [x + 0.1 * (-1) ** i for i, x in enumerate(found["rejected"].values)]
    assert names["p_value"](found["f"], found["start"], wrong) < 0.01
    assert "the plain values" in capsys.readouterr().out
    names["draw"](found, str(tmp_path / "picture.png"))


def test_simulation(tmp_path: Path) -> None:
    names = program("simulation")
    plain, drafted = names["main"](minutes=40)
    assert drafted.values == plain.values
    assert drafted.report.rounds < 15
    law, guess = (names[name]((20,) * 20) for name in ("exact_law", "approximate_law"))
    assert law @ np.arange(len(law)) == pytest.approx(guess @ np.arange(len(guess)), rel=0.02)
    names["draw"](plain, drafted, str(tmp_path / "picture.png"))
