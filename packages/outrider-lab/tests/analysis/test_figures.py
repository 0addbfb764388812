"""Every figure is written, with its numbers."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from outrider import LLM
from outrider_lab.figures import session, theory_plots
from tests.model_folders import model_folder


@pytest.mark.slow
def test_theory_s_figures(tmp_path: Path) -> None:
    made = theory_plots.all_of_them(tmp_path)
    assert {f.suffix for m in made for f in m.files} == {".png", ".svg", ".csv"}
    assert all(f.stat().st_size > 50 for m in made for f in m.files)
    table = list(csv.DictReader((tmp_path / "table_1.csv").open()))
    assert [(r["operations"], r["speed"]) for r in table][:2] == [("1.53", "1.96"), ("1.58", "2.53")]
    rows = list(csv.DictReader((tmp_path / "expected_tokens.csv").open()))
    assert float(rows[-1]["K=7"]) == 8
    assert made[0].as_dict()["rows"][0]["alpha"] == 0


def test_the_same_figure_gives_the_same_file(tmp_path: Path) -> None:
    files = []
    for name in "ab":
        (tmp_path / name).mkdir()
        files.append((theory_plots.best_k(tmp_path / name).files[2]).read_bytes())
    assert files[0] == files[1]


@pytest.mark.slow
def test_measured_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "sources_of", lambda _: ["model", "suffix"])  # all would take a minute
    small = model_folder(tmp_path / "draft", num_hidden_layers=1)
    llm = LLM(str(model_folder(tmp_path / "target")), draft_model=str(small), dtype="float32", draft_dtype="float32")
    said: list[str] = []
    made = [
        session.draft_quality_figure(tmp_path, steps=20, tick=said.append),
        *session.of_model(llm, "tiny", [[5, 6, 7], [8, 9]], tmp_path, tokens=24, tick=said.append),
    ]
    assert [m.name for m in made] == ["graded_drafts", "trace", "alpha_by_source", "lenience", "theory_and_measurement"]
    assert all(f.exists() for m in made for f in m.files)
    alpha = {(r["draft"], r["temperature"]): r for r in made[2].as_dict()["rows"]}
    assert alpha["draft model", 1.0]["tokens"] >= 24
    assert 0 < alpha["draft model", 1.0]["alpha_matching"] <= alpha["draft model", 1.0]["alpha"] <= 1
    assert made[3].table.markdown().startswith("| draft | l=1 |")
    assert said


@pytest.mark.parametrize("tokens", [40, 90])
def test_target_text_is_as_long_as_asked(tmp_path: Path, tokens: int) -> None:
    from outrider import SamplingParams

    llm = LLM(str(model_folder(tmp_path / "target")), draft="none", dtype="float32")
    texts = session.target_text(llm, [[5, 6, 7], [8, 9]], SamplingParams(ignore_eos=True), tokens, lambda _: None)
    assert sum(len(t.output) for t in texts) >= tokens
    assert len({tuple(t.prompt) for t in texts}) == len(texts)
