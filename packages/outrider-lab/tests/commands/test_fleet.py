"""``outrider plan --fleet`` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from outrider.cli.main import app
from outrider.errors import OutriderError
from tests.model_folders import model_folder

MACHINE = {"name": "toy", "target_ms_by_rows": {"1": 10, "256": 50}, "kv_tokens": 50_000}
QUICK = ("--duration", "2", "--input-len", "64", "--output-len", "8-32")


@pytest.fixture
def machine(tmp_path: Path) -> str:
    path = tmp_path / "machine.json"
    path.write_text(json.dumps(MACHINE))
    return str(path)


def plan(*options: str) -> Result:
    return CliRunner().invoke(app, ["plan", *options])


def test_the_number_of_replicas_is_found_drawn_and_told(machine: str, tmp_path: Path) -> None:
    asked = ("--fleet", "--machine", machine, "--request-rate", "25", "--target-p99", "0.9", *QUICK)
    picture = tmp_path / "plan.png"
    result = plan(*asked, "--plot", str(picture))
    assert result.exit_code == 0, result.output
    assert "replicas are needed" in result.stdout
    assert "time to first token" in result.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "the ingress is taken to cost nothing" in result.stdout
    found = json.loads(plan(*asked, "--json").stdout)
    assert found["latency_p99"] <= 0.9
    assert f"{found['replicas']} replicas are needed" in result.stdout
    assert found["machine"]["name"] == "toy"


def test_the_cost_of_the_ingress_is_read_or_measured_and_told(tmp_path: Path) -> None:
    saved = tmp_path / "saved.json"
    options = ("--fleet", "--request-rate", "20", "--replicas", "2", *QUICK)
    model = str(model_folder(tmp_path / "model"))
    measured = plan(*options, "--model", model, "--threads", "1", "--max-batch-size", "4", "--save-machine", str(saved))
    assert measured.exit_code == 0, measured.output
    assert "(measured now)" in measured.stdout
    again = plan(*options, "--machine", str(saved))
    assert f"(from {saved})" in again.stdout
    assert "works 0.00ms" not in again.stdout


def test_a_fleet_without_a_model_at_hand(tmp_path: Path) -> None:
    saved = tmp_path / "h100.json"
    result = plan(
        "--fleet", "--what-if", "--target-params", "8B", "--alpha", "0.7", "--draft-params", "1B", "--hardware", "H100",
        "--request-rate", "20", "--replicas", "2", "--save-machine", str(saved), "--mtbf", "1", *QUICK,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "of draft tokens accepted" in result.stdout
    assert "failures" in result.stdout
    again = ("--fleet", "--machine", str(saved), "--request-rate", "20", "--replicas", "2", *QUICK)
    assert json.loads(plan(*again, "--draft", "none", "--json").stdout)["acceptance"] is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--replicas", "3"), "add --fleet"),
        (("--fleet", "--replicas", "3"), "--request-rate"),
        (("--fleet", "--request-rate", "3"), "--target-p99"),
        (("--fleet", "--request-rate", "3", "--replicas", "1", "--routing", "magic"), "routing='magic'"),
        (("--fleet", "--request-rate", "-3", "--replicas", "1"), "rate=-3"),
        (("--fleet", "--request-rate", "3", "--replicas", "0"), "replicas=0"),
        (("--fleet", "--request-rate", "3", "--replicas", "1", "--input-len", "x"), "input_len='x'"),
        (("--fleet", "--request-rate", "3", "--replicas", "1", "--draft", "suffix"), "was not measured"),
        (("--fleet", "--request-rate", "3", "--replicas", "1", "--alpha", "0.5"), "--what-if"),
        (("--fleet", "--request-rate", "9", "--target-p99", "0.01"), "no number of replicas"),
    ],
)
def test_wrong_options_are_one_error(options: tuple[str, ...], message: str, machine: str) -> None:
    given = options if "--fleet" not in options else (*options, "--machine", machine, "--duration", "2")
    result = plan(*given)
    assert isinstance(result.exception, OutriderError)
    assert message in str(result.exception)
