"""Questions from every kind of file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from outrider.errors import InvalidRequestError
from outrider_lab.data import workloads


def write(path: Path, *rows: Any) -> str:
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return str(path)


@pytest.mark.parametrize(
    ("row", "text", "chat"),
    [
        ({"question_id": 7, "category": "coding", "turns": ["first", "second"]}, "first", True),
        ({"conversations": [{"from": "system", "value": "s"}, {"from": "human", "value": "hi"}]}, "hi", True),
        ({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "hello"}]}, "hello", True),
        ({"task_id": "HumanEval/0", "prompt": "def f():"}, "def f():", False),
    ],
)
def test_kinds_of_jsonl(tmp_path: Path, row: dict[str, Any], text: str, chat: bool) -> None:
    [question] = workloads.load(write(tmp_path / "set.jsonl", row))
    assert (question.text, question.chat) == (text, chat)


def test_a_json_list_is_read_too(tmp_path: Path) -> None:
    path = tmp_path / "set.json"
    path.write_text(json.dumps([{"prompt": "a"}, {"prompt": "b"}]))
    assert [q.text for q in workloads.load(str(path))] == ["a", "b"]


def test_a_text_gives_its_paragraphs(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("one\nline\n\n\ntwo\n")
    assert [q.text for q in workloads.load(str(path))] == ["one\nline", "two"]


def test_categories_take_turns_and_long_texts_are_left_out(tmp_path: Path) -> None:
    rows = [{"category": c, "turns": [t]} for c, t in (("b", "1"), ("a", "2"), ("b", "3"), ("a", "4"), ("a", "x" * 99))]
    path = write(tmp_path / "set.jsonl", *rows)
    assert [q.text for q in workloads.load(path, max_chars=50)] == ["2", "1", "4", "3"]
    assert [q.text for q in workloads.load(path, count=1, categories={"b"})] == ["1"]
    with pytest.raises(InvalidRequestError, match="has 2 such questions, but 3"):
        workloads.load(path, count=3, categories={"b"})


def test_mt_bench_s_categories_are_one(tmp_path: Path) -> None:
    assert workloads.load(write(tmp_path / "q.jsonl", {"category": "stem", "turns": ["x"]}))[0].category == "mt_bench"


def test_built_in_sets_repeat(tmp_path: Path) -> None:
    assert len(workloads.load("mix", count=14)) == 14
    assert workloads.load("stories") == list(workloads.STORIES)
    with pytest.raises(InvalidRequestError, match="no category"):
        workloads.load("mix", categories={"poetry"})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"turns": []}', "line 1"),
        ("{", "not JSONL"),
        ('{"answer": 1}', "no prompt"),
        ("[1]", "no prompt"),
        ("", "0 such"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(content)
    with pytest.raises(InvalidRequestError, match=message):
        workloads.load(str(path))
    with pytest.raises(InvalidRequestError, match="cannot be read"):
        workloads.load(str(tmp_path / "missing.txt"))
