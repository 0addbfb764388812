"""The field's benchmarks: their files, their conversations, and the tables of their papers."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from outrider.errors import InvalidRequestError
from outrider.tokenizer.tokenizer import Tokenizer
from outrider_lab.bench.arrivals import ServedRequest
from outrider_lab.bench.conversing import Conversing, conversation_ids
from outrider_lab.data import suites
from tests.cli.test_cli import outcome, run
from tests.model_folders import model_folder

SPEC = [
    {"question_id": 1, "category": "writing", "turns": ["one two", "again"]},
    {"question_id": 2, "category": "rag", "turns": ["red green"]},
    {"question_id": 3, "category": "translation", "turns": ["a b a b"]},
    {"question_id": 4, "category": "coding", "turns": ["so it goes", "and on"]},
]
SPEED = {"question_id": "x", "category": "math", "sub_category": None, "turns": ["one", "two"], "source": "s",
         "src_id": "1", "difficulty": None, "multiturn": True}  # fmt: skip
HUMAN = {"task_id": "HumanEval/0", "prompt": "def f():\n", "entry_point": "f", "canonical_solution": "", "test": ""}


def written(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(model_folder(tmp_path_factory.mktemp("models") / "target"))


def test_spec_bench_counts_mt_bench_as_one_and_keeps_its_turns(tmp_path: Path) -> None:
    found = suites.load("spec-bench", written(tmp_path / "question.jsonl", *SPEC))
    assert [(q.category, q.text, q.later) for q in found] == [
        ("mt_bench", "one two", ("again",)),
        ("mt_bench", "so it goes", ("and on",)),
        ("translation", "a b a b", ()),
        ("rag", "red green", ()),
    ]
    assert [q.category for q in suites.load("spec-bench", tmp_path / "question.jsonl", count=3)] == [
        "mt_bench", "translation", "rag",
    ]  # fmt: skip


def test_speed_bench_keeps_categories_that_mt_bench_has_too(tmp_path: Path) -> None:
    prepared = {"category": "Writing", "messages": [{"role": "user", "content": "one"}]}
    found = suites.load("speed-bench", written(tmp_path / "test.jsonl", SPEED, prepared))
    assert [(q.category, q.later) for q in found] == [("math", ("two",)), ("writing", ())]


def test_parquet_is_read_where_pyarrow_is(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.Table.from_pylist([SPEED]), tmp_path / "test.parquet")
    assert [q.later for q in suites.load("speed-bench", tmp_path / "test.parquet")] == [("two",)]


def test_humaneval_is_read_compressed_too(tmp_path: Path) -> None:
    path = tmp_path / "HumanEval.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(HUMAN).encode()))
    (found,) = suites.load("humaneval", path)
    assert (found.id, found.category, found.chat) == ("HumanEval/0", "humaneval", True)


@pytest.mark.parametrize(
    ("suite", "row", "message"),
    [
        ("spec-bench", HUMAN, "has no turns: is it a file of Spec-Bench"),
        ("spec-bench", SPEED | {"category": "poetry"}, "category='poetry', but Spec-Bench has mt_bench"),
        ("speed-bench", SPEED | {"turns": ["FULL BENCHMARK DATA SHOULD BE FETCHED FROM"]}, "prepare script"),
        ("speed-bench", SPEED | {"turns": []}, "line 1"),
        ("speed-bench", SPEED | {"turns": [1]}, "a turn that is no text"),
        ("humaneval", SPEED, "has no prompt"),
        ("humaneval", ["row"], "has no prompt"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, suite: str, row: object, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        suites.load(suite, written(tmp_path / "rows.jsonl", row))


class Scripted:
    """A backend that answers every prompt with one token, and notes what it was asked."""

    name = "scripted"
    version = ""

    def __init__(self) -> None:
        self.asked: list[list[list[int]]] = []

    def run(self, prompts: Sequence[list[int]], salt: str) -> tuple[list[list[int]], float, list[ServedRequest]]:
        self.asked.append([list(prompt) for prompt in prompts])
        return [[40 + len(self.asked)] for _ in prompts], 0.5, []

    def peak_mb(self) -> float:
        return 0.0


def test_later_turns_stand_behind_the_backend_s_own_answers(tmp_path: Path, folder: str) -> None:
    tokenizer, backend = Tokenizer.from_folder(Path(folder)), Scripted()
    questions = suites.load("spec-bench", written(tmp_path / "q.jsonl", *SPEC[:2]))
    tokens, seconds, _ = Conversing(backend, tokenizer, 1000).run(questions, "")
    assert tokens == [[41, 42], [41]]
    assert seconds == 1.0
    answer = tokenizer.decode([41])
    talk = [{"role": "user", "content": "one two"}, {"role": "assistant", "content": answer},
            {"role": "user", "content": "again"}]  # fmt: skip
    assert [len(asked) for asked in backend.asked] == [2, 1]
    assert backend.asked[1] == [conversation_ids(tokenizer, talk)]
    room = len(backend.asked[1][0])  # where the second turn does not fit, the conversation ends
    assert Conversing(Scripted(), tokenizer, room).run(questions, "")[0] == [[41], [41]]


def test_the_table_has_the_papers_rows_and_columns(folder: str, tmp_path: Path) -> None:
    path, out, plot = written(tmp_path / "question.jsonl", *SPEC), tmp_path / "out.json", tmp_path / "plot.png"
    args = ("bench", "-m", folder, "--suite", "spec-bench", "--prompts", str(path), "-s", "none", "-s", "lookup:4",
            "-n", "6", "--rounds", "1", "--dtype", "float32")  # fmt: skip
    shown = run(*args, "--out", str(out), "--plot", str(plot)).stdout.splitlines()
    assert shown[0] == "Spec-Bench, 4 questions, T=0, at most 6 tokens an answer, 1 at once"
    heads = [line.split()[-4:] for line in shown if "MT-Bench" in line]
    assert heads == [["MT-Bench", "Trans.", "RAG", "Overall"]] * 2
    assert [line.split()[0] for line in shown if line.startswith(("none ", "lookup:4 "))] == ["none", "lookup:4"] * 2
    assert "All answers are those of none, token by token." in shown
    found = json.loads(out.read_text())
    assert (found["suite"], found["max_tokens"], found["temperature"]) == ("spec-bench", 6, 0.0)
    assert set(found["results"]["1"]["lookup:4"]["categories"]) == {"mt_bench", "translation", "rag"}
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_answers_are_capped_as_in_speed_bench(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def measure(*args: Any, **_: object) -> tuple[dict[int, Any], list[Any]]:
        seen.append(args[4])
        return {}, []

    monkeypatch.setattr("outrider_lab.commands.bench._measure", measure)
    path = written(tmp_path / "HumanEval.jsonl", HUMAN)
    run("bench", "-m", folder, "--suite", "humaneval", "--prompts", str(path), "--json")
    run("bench", "-m", folder, "--prompts", str(path), "--json")
    assert [(params.max_tokens, params.greedy, params.ignore_eos) for params in seen] == [
        (4096, True, False), (96, True, False),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--suite", "mmlu"), "suite='mmlu' is unknown: use spec-bench, speed-bench, humaneval"),
        (("--suite", "humaneval"), "give your copy with --prompts FILE"),
        (("--suite", "humaneval", "--prompts", "nowhere.jsonl"), "nowhere.jsonl"),
        (("--suite", "humaneval", "--prompts", "x.jsonl", "--rate", "2"), "use --concurrency"),
    ],
)
def test_what_cannot_be_run_is_one_line(args: tuple[str, ...], message: str) -> None:
    done = outcome("bench", *args)
    assert done.returncode in (1, 2)
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
