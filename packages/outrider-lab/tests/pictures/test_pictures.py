"""What a notebook shows of a finished request: its steps, their plot, and the draft tree of one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

from outrider import LLM, Output, SamplingParams, SpeculationParams, StepOutput
from outrider.engine.stats import RequestStats
from outrider.errors import InvalidRequestError
from outrider.utils import notebook
from outrider.verify.draft import DraftReport
from tests.model_folders import model_folder

REPORT = DraftReport((7, 8, 9, 7), (-1, -1, 0, 2), ("suffix",) * 4, (0.9, 0.1, 0.5, 0.2), (0, 2), 4, 4)
"""Root - 7 - 9 - 7, and 8 beside the first; 7 and 9 were accepted."""
TEXTS = {7: "<a>", 8: "b\n", 9: "c", 5: "end"}


def token(id: int, origin: Any, draft: DraftReport | None = None) -> StepOutput:
    return StepOutput("0", id, TEXTS[id], origin, "suffix" if origin != "target" else "none", None, None, draft=draft)


@pytest.fixture
def output() -> Output:
    steps = [token(8, "target"), token(7, "accepted"), token(9, "accepted"), token(5, "recovered", REPORT)]
    stats = RequestStats(completion_tokens=4, target_runs=2, rounds=[(0, 0), (4, 2)])
    return Output("b\n<a>cend", [8, 7, 9, 5], "stop", 3, [1], [], stats, steps, TEXTS)


def words(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def test_the_table_has_a_row_for_each_forward_pass(output: Output) -> None:
    table = output.table()
    assert [(row["drafted"], row["accepted"], row["source"], row["text"]) for row in table.rows] == [
        (0, 0, "none", "b\n"), (4, 2, "suffix", "<a>cend"),
    ]  # fmt: skip
    assert "'<a>cend'" in repr(table)
    html = table._repr_html_()
    assert html.count("<tr>") == 3
    assert "&lt;a&gt;" in html
    assert "b⏎" in html


def test_the_tree_shows_what_was_accepted_and_what_came_instead(output: Output, tmp_path: Path) -> None:
    picture = output.tree(1)
    assert picture.svg == picture._repr_svg_()
    assert words(picture.svg)[:2] == ["step 1: 2 of 4 draft tokens accepted", "text so far"]
    assert sorted(words(picture.svg)[2:]) == ["<a>", "<a>", "b⏎", "c", "end"]
    root = ElementTree.fromstring(picture.svg)
    boxes = [box for box in root.iter("{http://www.w3.org/2000/svg}rect") if box.get("fill-opacity")]
    refused = [box for box in boxes if box.get("stroke-dasharray")]
    assert (len(boxes), len(refused)) == (5, 2)
    places = [(box.get("x"), box.get("y")) for box in boxes]
    assert len(set(places)) == 5  # no box hides another
    assert {box.get("y") for box in boxes if box.get("stroke") == "#2e9e5b"} == {"40"}  # the path is a straight line
    picture.save(tmp_path / "tree.svg")
    assert (tmp_path / "tree.svg").read_text() == picture.svg


def test_a_tree_that_is_not_on_record_says_how_to_get_it(output: Output) -> None:
    with pytest.raises(InvalidRequestError, match="reports_drafts=True"):
        output.tree(0)
    with pytest.raises(InvalidRequestError, match="use 0 to 1"):
        output.tree(2)


def test_the_plot_shows_tokens_of_each_forward_pass(output: Output) -> None:
    picture = output.plot()
    assert "4 tokens in 2 forward passes: τ = 2.00" in words(picture.svg)
    assert "plot" not in repr(picture) or "save" in repr(picture)
    titles = [t.text for t in ElementTree.fromstring(picture.svg).iter("{http://www.w3.org/2000/svg}title")]
    assert titles.count("step 1, suffix: 2 of 4 draft tokens accepted") == 2


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    folder = str(model_folder(tmp_path_factory.mktemp("models") / "target"))
    with LLM(folder, draft_model=folder, draft="model", dtype="float32", draft_dtype="float32", threads=1) as loaded:
        yield loaded


def test_an_answer_draws_its_own_trees(llm: LLM) -> None:
    source = SpeculationParams(draft="model", spec_length=3)
    plain = llm.generate("one two", SamplingParams(max_tokens=9), speculation=source)
    reported = llm.generate("one two", SamplingParams(max_tokens=9), speculation=source, reports_drafts=True)
    assert plain.token_ids == reported.token_ids
    assert plain.token_texts == {}
    steps = reported.table().steps
    assert "".join(step.text for step in steps) == reported.text
    assert [t.token_id for step in steps for t in step.tokens] == reported.token_ids
    drafted = next(step for step in steps if step.drafted)
    assert drafted.report is not None
    assert len(drafted.report.tokens) == 3
    assert len(words(reported.tree(drafted.number).svg)) == 2 + 3 + 1


class Shown:
    """IPython's ``display``: notes what a notebook would show."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, line: Any, display_id: bool = False) -> Any:
        self.lines.append(line._repr_html_())
        return SimpleNamespace(update=lambda line: self.lines.append(line._repr_html_()))


def test_progress_in_a_notebook(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Shown()
    monkeypatch.setattr(notebook, "notebook_display", lambda: shown)
    prompts = ["one", "two three"]
    quiet = llm.generate(prompts, SamplingParams(max_tokens=4))
    assert shown.lines == []
    outputs = llm.generate(prompts, SamplingParams(max_tokens=4), progress=True)
    assert [output.token_ids for output in outputs] == [output.token_ids for output in quiet]
    assert 'value="0" max="2"' in shown.lines[0]
    assert 'value="2" max="2"' in shown.lines[-1]
    assert "generate: 2 of 2" in shown.lines[-1]
    assert "8 tokens" in shown.lines[-1]


def test_a_shell_that_is_no_notebook_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "IPython", None)
    assert notebook.notebook_display() is None
    terminal = SimpleNamespace(get_ipython=SimpleNamespace)
    monkeypatch.setitem(sys.modules, "IPython", terminal)
    assert notebook.notebook_display() is None


def test_editors_find_the_types() -> None:
    assert (Path(sys.modules["outrider"].__file__ or "").parent / "py.typed").exists()
