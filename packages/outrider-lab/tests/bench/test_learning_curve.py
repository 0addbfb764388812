"""The learning curve: the law is found again, drafts of several sizes are trained, and decoding is measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import drafts, learning_curve
from benchmarks.power_law import chain_tau, fit
from outrider.errors import ConfigError
from outrider_train.report import card as report
from tests.model_folders import model_folder
from tests.paths import LAB
from tests.training import small


def test_a_known_law_is_found_and_its_interval_holds_the_truth() -> None:
    sizes = [3e4, 1e5, 3e5, 1e6]
    truth = np.array([[1 - e - b * n**-0.4 for e, b in ((0.2, 20.0), (0.35, 30.0))] for n in (*sizes, 1e7)])
    rows = 20_000
    noisy = np.random.default_rng(1).binomial(rows, truth[:4]) / rows
    found = fit(sizes, noisy.tolist(), [rows] * 4)
    value, low, high = found.alpha(1e7)
    assert (low <= truth[4]).all()
    assert (truth[4] <= high).all()
    assert (high - low < 0.05).all()
    assert abs(value - truth[4]).max() < 0.02
    assert found.exponent()[0] == pytest.approx(0.4, abs=0.12)
    assert found.tau(1e7)[0] == pytest.approx(chain_tau(truth[4]), rel=0.02)


def test_what_does_not_fall_is_a_flat_line() -> None:
    found = fit([1e3, 1e4, 1e5], [[0.5], [0.5], [0.5]], [1000] * 3)
    assert found.alpha(1e6)[0] == pytest.approx([0.5], abs=0.01)
    with pytest.raises(ValueError, match="at least 3"):
        fit([1e3, 1e4], [[0.5], [0.6]], [10, 10])


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("answers") / "answers.jsonl"
    rows = []
    for line in small.lines(60):
        assert line.document is not None
        ids, start = line.document.ids, line.document.start
        rows.append(json.dumps({"prompt_ids": ids[:start], "answer_ids": ids[start:]}))
    path.write_text("\n".join(rows) + "\n")
    return path


@pytest.mark.parametrize("kind", ["eagle", pytest.param("draft", marks=pytest.mark.slow)])
def test_sizes_are_nested_and_held_against_the_same_documents(
    kind: str, answers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "plot", lambda *given: [])  # three pictures of each would take most of the time
    target = model_folder(tmp_path / "target")
    given = ["--model", str(target), "--answers", str(answers), "--kind", kind, "--sizes", "100", "200", "400"]
    given += ["--batch-tokens", "128", "--truncate", "1", "--device", "cpu", "--out", str(tmp_path / "out"), "--json"]
    decoded = ["--questions", "stories", "--count", "1", "--max-tokens", "8", "--plot", str(tmp_path / "curve.png")]
    found = learning_curve.main([*given, *decoded])
    assert set(found) == {"held-out documents", "decoding"}
    points = found["held-out documents"]["points"]
    assert [100 <= p["tokens"] <= 130 for p in points] == [True, False, False]
    assert len({p["rows"] for p in points}) == 1
    assert found["held-out documents"]["forecast"]["tokens"] == 10 * points[-1]["tokens"]
    ahead: list[dict[str, Any]] = found["held-out documents"]["forecast"]["alpha"]
    assert all(a["low"] <= a["value"] <= a["high"] for a in ahead)
    assert (tmp_path / "curve.png").stat().st_size > 10_000
    trained = (tmp_path / "out" / f"{kind}-200" / "model.safetensors").stat().st_mtime_ns
    learning_curve.main(given)  # what is done stays
    assert (tmp_path / "out" / f"{kind}-200" / "model.safetensors").stat().st_mtime_ns == trained


def test_reports_without_counts_and_data_that_is_too_short_are_refused(answers: Path, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text('{"metrics": {}}')
    with pytest.raises(ConfigError, match="train the draft again"):
        learning_curve.read_point(tmp_path)
    given = ["--model", str(model_folder(tmp_path / "target")), "--answers", str(answers), "--sizes", "1M"]
    with pytest.raises(ConfigError, match="write more answers"):
        learning_curve.main([*given, "--device", "cpu", "--out", str(tmp_path / "out")])


def test_the_table_of_drafts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = {"eagle:3": "eagle", "model:2": "distilled", "eagle:tree=2,1": "eagle"}
    sources = [part for source, folder in folders.items() for part in ("-s", f"{source}@{LAB / folder}")]
    given = ["stories", "--model", str(LAB / "target"), *sources, "--verifiers", "matching", "block", "--count", "2"]
    given += ["--max-tokens", "12", "--repeat", "2", "--device", "cpu", "--temperatures", "0", "0.7", "--out"]
    found = drafts.main([*given, str(tmp_path / "table.json"), "--markdown", str(tmp_path / "table.md")])
    said = capsys.readouterr().out
    assert "tree=2,1@eagle with block is left out" in said
    for results in found["results"].values():
        assert set(results) == {
            "plain", "eagle:3@eagle, matching", "eagle:3@eagle, block", "model:2@distilled, matching",
            "model:2@distilled, block", "eagle:tree=2,1@eagle, matching",
        }  # fmt: skip
        for name, kinds in results.items():
            assert set(kinds) == {"all", "story"}
            tau = kinds["all"]["tau"]
            assert 1 <= tau["low"] <= tau["value"] <= tau["high"]
            assert len(kinds["all"]["alpha"]) == (0 if name == "plain" else 3 if name.startswith("eagle:3") else 2)
            if "matching" in name:
                assert kinds["all"]["identical"] == 2
    assert found["results"]["0"]["model:2@distilled, matching"]["all"]["tau"]["value"] > 1.3
    assert set(found["target_ms"]) == {1, 3, 4, 6}
    assert json.loads((tmp_path / "table.json").read_text())["questions"] == 2
    assert "| draft | α1 | α2 | α3 |" in (tmp_path / "table.md").read_text()
