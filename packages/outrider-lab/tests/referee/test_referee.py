"""The command: a signed report of a whole run, its verification, interruption, and the words for what is not tested."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from outrider.cli import main
from outrider.errors import ConfigError
from outrider_lab.data.workloads import Question
from outrider_lab.referee.budget import Budget
from outrider_lab.referee.document import changes, read_document
from outrider_lab.referee.sampling import homogeneity
from outrider_lab.referee.sides import Side
from outrider_lab.referee.suite import Suite, run_suite
from tests.analysis.certify.tool_server import ToolServer
from tests.referee.faulty_server import faulty_server

QUESTIONS = [Question(name, "test", f"prompt {name}") for name in ("one", "two", "three")]


def command(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr("sys.argv", ["outrider", "referee", *words])
    with pytest.raises(SystemExit) as ended:
        main.main()
    return int(ended.value.code or 0)


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the reports of one run, in both forms."""
    folder = tmp_path_factory.mktemp("referee")
    with faulty_server() as url, pytest.MonkeyPatch.context() as patch:
        paths = [f"--report={folder / name}" for name in ("report.json", "report.html")]
        assert command(patch, url, "--minutes", "0.005", "--key", str(folder / "key.pem"), *paths) == 0
    return folder


def test_a_report_is_signed_and_verified(
    reports: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (reports / "key.pem").stat().st_mode & 0o77 == 0
    for name in ("report.json", "report.html"):
        document, _ = read_document(reports / name)
        assert command(monkeypatch, "verify", str(reports / name)) == 0
        assert document["signature"]["public_key"] in capsys.readouterr().out
    assert document["commands"][0].startswith("outrider referee http://127.0.0.1")
    assert next(iter(document["servers"].values()))["version"]["version"] == "1.2.3"
    page = (reports / "report.html").read_text()
    assert page.count("<svg") == 3
    speed = next(c for c in document["result"]["checks"] if c["name"] == "speed")["data"]
    for side, level in speed["percentiles"].items():  # the plot's are the summary's
        assert all(
            f">{side}, {name}</text>" in page and f">{rate:.4g} tokens/s<" in page for name, rate in level.items()
        )
    assert "http-equiv" not in page
    assert "src=" not in page  # nothing is loaded from elsewhere


def test_a_changed_report_names_the_change(
    reports: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    document, _ = read_document(reports / "report.json")
    document["result"]["checks"][1]["summary"] = "all is well"
    document["date"] = "2020-01-01T00:00:00+00:00"
    (tmp_path / "changed.json").write_text(json.dumps(document))
    assert command(monkeypatch, "verify", str(tmp_path / "changed.json")) == 1
    assert capsys.readouterr().out.splitlines() == [
        "date: was changed",
        "check 'greedy output, alone': was changed",
    ]


def test_other_changes_are_named(reports: Path, tmp_path: Path) -> None:
    document, page = read_document(reports / "report.html")
    assert page is not None
    assert changes(document, page) == []
    assert changes(document, page.replace("Findings", "Praise")) == ["the page: it is not the one of its report"]
    checks = document["result"]["checks"]
    fewer = {**document, "result": {**document["result"], "checks": checks[1:]}}
    assert changes(fewer) == ["order of checks: was changed", f"check {checks[0]['name']!r}: was removed"]
    forged = {**fewer, "digests": dict.fromkeys(document["digests"], "0")}
    assert changes(forged)[-1] == "signature: it is not of these digests by this key"
    assert changes(document, signer="00")[0].startswith("signature: ")
    assert changes({k: v for k, v in document.items() if k != "signature"}) == ["signature: the report has none"]
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(ConfigError, match="no report"):
        read_document(tmp_path / "other.json")


def test_an_interruption_keeps_the_checks_before_it() -> None:
    def tick(what: str) -> None:
        if what == "endpoint, seeded":
            raise KeyboardInterrupt

    with faulty_server() as url:
        found = run_suite(url, None, QUESTIONS, Suite(tokens=8, samples=16), tick=tick)
    assert not found.complete
    assert [check.name for check in found.checks] == [
        "control: baseline against itself",
        "greedy output, alone",
        "greedy output, company of 4",
        "greedy output, company of 16",
    ]
    assert "INTERRUPTED" in found.verdict


def test_an_interruption_keeps_the_samples_before_it() -> None:
    said: list[str] = []

    def tick(what: str) -> None:
        said.append(what)
        if said.count("endpoint, samples") == 2:
            raise KeyboardInterrupt

    with faulty_server() as url:
        found = run_suite(url, None, QUESTIONS, Suite(tokens=8, samples=1000), tick=tick)
    assert not found.complete
    assert found.checks[-1].data["samples"] == 128


def test_tool_calls_are_part_of_the_suite() -> None:
    with faulty_server(chat=ToolServer()) as url:
        found = run_suite(url, None, QUESTIONS, Suite(tokens=8, samples=16, tool_calls=4))
    tools = {check.name: check.status for check in found.checks if check.name.startswith("tool calls, ")}
    assert len(tools) >= 4
    assert "fail" not in tools.values()


def test_a_model_without_tools_is_no_fault() -> None:
    with faulty_server(chat=ToolServer(), knows_tools=False) as url:
        found = run_suite(url, None, QUESTIONS, Suite(tokens=8, samples=16, tool_calls=8))
    tools = {check.name: check.status for check in found.checks if check.name.startswith("tool calls, ")}
    assert "note" in tools.values()
    assert "fail" not in tools.values()


def test_a_server_that_dies_fails_and_keeps_the_checks_before(monkeypatch: pytest.MonkeyPatch) -> None:
    choices = Side.choices

    def dying(side: Side, options: Mapping[str, Any]) -> Any:
        if "presence_penalty" in options:
            raise ConfigError("cannot be asked")
        return choices(side, options)

    monkeypatch.setattr(Side, "choices", dying)
    with faulty_server() as url:
        found = run_suite(url, None, QUESTIONS, Suite(tokens=8, samples=16))
    assert [check.name for check in found.checks if check.status == "fail"] == ["biases: the end"]
    assert found.checks[-1].name == "frequencies of samples"


def test_a_budget_gives_unused_time_to_later_parts() -> None:
    now = [0.0]
    budget = Budget(100.0, 4.0, clock=lambda: now[0])
    budget.begin(1.0)
    assert budget.left == 25.0
    now[0] = 5.0
    budget.begin(1.0)
    assert budget.left == pytest.approx(95 / 3)
    now[0] = 100.0
    budget.begin(2.0)
    assert budget.left == 0.0


def test_power_is_of_two_samples() -> None:
    """A detectable fault of two samples is as large as one of a known distribution with half as many."""
    even = homogeneity(["a", "b"] * 500, ["b", "a"] * 500)
    assert (even.samples, even.bins, even.total_variation) == (500, 2, 0.0)
    assert homogeneity(["a"] * 90 + ["b"] * 10, ["a"] * 50 + ["b"] * 50).fails(1)
    assert even.detectable(1) == pytest.approx(0.1029, abs=0.002)


def test_a_server_that_ignores_the_field_is_compared_with_itself() -> None:
    with faulty_server(knows_drafts=False) as url:
        found = run_suite(url, None, QUESTIONS, Suite(tokens=8, samples=16))
    assert found.subject["baseline"] == "the endpoint itself, with drafts"
    named: dict[str, Any] = {check.name: check for check in found.checks}
    assert named["tool calls"].summary.startswith("not tested: ")
