"""Estimates that follow from stated assumptions."""

from __future__ import annotations

from typing import Any

import pytest

from outrider.errors import ConfigError, InvalidRequestError
from outrider_lab import theory
from outrider_lab.roofline import HARDWARE, ModelSize, Roofline, find_hardware
from outrider_lab.what_if import Scenario, estimate


@pytest.mark.parametrize(("text", "parameters"), [("70B", 70e9), ("1.1b", 1.1e9), (" 135M ", 135e6)])
def test_sizes_are_read_as_models_are_named(text: str, parameters: float) -> None:
    assert ModelSize.parse(text, 4) == ModelSize(parameters, 4)


@pytest.mark.parametrize("text", ["", "70", "big", "7BB", "-7B", "0B"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="70B or 135M"):
        ModelSize.parse(text)


def test_names_of_hardware() -> None:
    assert find_hardware("rtx4090").name == "RTX 4090"
    with pytest.raises(ConfigError, match=r"abacus.*H100"):
        find_hardware("abacus")


@pytest.mark.parametrize("bad", [{"alpha": 1.7}, {"alpha": -0.1}, {"batch": 0}, {"devices": 0}])
def test_impossible_scenarios_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        scenario(**bad)


def test_weights_beyond_one_device_are_spread_over_several() -> None:
    found = estimate(Scenario(target=ModelSize(70e9), hardware=HARDWARE["H100"], alpha=0.75, draft=ModelSize(1e9)))
    assert found.hardware.devices == 2  # 142 GB of weights
    assert any("2 devices" in note for note in found.notes)
    assert 2.3 < found.speedup < 3.3
    assert found.speedup < float(theory.oracle_tokens(0.75))
    assert max(found.by_k, key=lambda row: row[1])[0] == found.best_k


def scenario(**changes: Any) -> Scenario:
    options: dict[str, Any] = {"target": ModelSize(7e9), "hardware": HARDWARE["A100"], "alpha": 0.7}
    return Scenario(**options | changes)


def test_a_run_is_bound_by_memory_first_and_by_arithmetic_later() -> None:
    run = Roofline(ModelSize(7e9), HARDWARE["A100"])
    assert run(run.free_rows // 2) == run(1)
    assert run(4 * run.free_rows) > 2 * run(1)
    assert run(1) == pytest.approx(14e9 / (0.8 * 2.04e12), rel=0.15)  # the weights, read once


def test_gains_fall_with_the_batch_until_speculation_is_advised_against() -> None:
    speedups = [estimate(scenario(batch=b)).speedup for b in (1, 32, 256)]
    assert speedups[0] > speedups[1] > speedups[2] >= 1
    last = estimate(scenario(batch=512, alpha=0.3))
    assert last.best_k == 0
    assert any("do not speculate" in note for note in last.notes)


def test_a_free_draft_gains_more_than_one_that_costs() -> None:
    assert estimate(scenario()).speedup > estimate(scenario(draft=ModelSize(1e9))).speedup


def test_too_few_devices_are_pointed_out() -> None:
    found = estimate(scenario(target=ModelSize(70e9), devices=1))
    assert any("do not fit" in note for note in found.notes)
