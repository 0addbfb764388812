"""What the ingress costs: measured with our own server, and told apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider import LLM
from outrider_lab.cost import LatencyCurve
from outrider_lab.fleet_planning.costs import ingress
from outrider_lab.fleet_planning.costs.ingress import measure_ingress, split_costs
from outrider_lab.fleet_planning.costs.machine import Machine, from_dict
from tests.model_folders import model_folder


def test_an_ingress_is_measured_with_our_own_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingress, "WAVES", 2)
    monkeypatch.setattr(ingress, "LONE", 3)
    costs = measure_ingress(LLM(str(model_folder(tmp_path)), threads=1, max_batch_size=4))
    assert costs is not None
    assert 1e-5 < costs.ingress_per_request < 0.1, "work of its threads, not of the engine"
    assert costs.request_seconds + costs.response_seconds < 1
    machine = from_dict(costs.of(Machine(LatencyCurve({1: 0.001}))).as_dict())
    assert machine.ingress_per_request == pytest.approx(costs.ingress_per_request, abs=1e-6)


def test_costs_are_told_apart() -> None:
    """2 ms and 0.1 ms a token of work; 5 ms pass besides, and for two of four requests 4 ms more."""
    beside = [0.0071, 0.0071, 0.0111, 0.0111]
    costs = split_costs(beside, 0.0022, 0.0038, lengths=(2, 18))
    assert costs.ingress_per_token == pytest.approx(1e-4)
    assert costs.ingress_per_request == pytest.approx(2e-3)
    assert costs.request_jitter == pytest.approx(0.002 * 4 / 3)
    least = 0.005 - costs.request_jitter / 4
    assert costs.request_seconds == pytest.approx(0.6 * least)
    assert costs.response_seconds == pytest.approx(0.4 * least)
