"""Reads published benchmarks from the user's own copy; the package contains none."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from outrider.errors import ConfigError, InvalidRequestError
from outrider_lab.data.workloads import MT_BENCH, Question, parse_question, parse_rows, pick

MAX_TOKENS = 4096
"""The most tokens of an answer, as in SPEED-Bench; a model may end an answer earlier."""

_PLACEHOLDER = "FULL BENCHMARK DATA SHOULD BE FETCHED"  # in SPEED-Bench's files before their preparation


@dataclass(frozen=True)
class Suite:
    """A benchmark: its categories with their headings, in the order of its papers' tables."""

    title: str
    headings: Mapping[str, str]
    wanted: str  # a field of every row of its files


SUITES: Mapping[str, Suite] = {
    "spec-bench": Suite(
        "Spec-Bench",
        {"mt_bench": "MT-Bench", "translation": "Trans.", "summarization": "Summ.", "qa": "QA",
         "math_reasoning": "Math", "rag": "RAG"},
        wanted="turns",
    ),
    "speed-bench": Suite(
        "SPEED-Bench",
        {"coding": "Coding", "humanities": "Human.", "math": "Math", "multilingual": "Multil.", "qa": "QA",
         "rag": "RAG", "reasoning": "Reason.", "roleplay": "Roleplay", "stem": "STEM", "summarization": "Summ.",
         "writing": "Writing", "low_entropy": "Low", "mixed": "Mixed", "high_entropy": "High"},
        wanted="turns",
    ),
    "humaneval": Suite("HumanEval", {"humaneval": "HumanEval"}, wanted="prompt"),
}  # fmt: skip
"""The supported suites, by name. The last three categories of SPEED-Bench are in its throughput files."""


def load(
    name: str, path: Path, *, count: int | None = None, categories: set[str] | None = None, max_chars: int | None = None
) -> list[Question]:
    """The questions of the suite ``name`` in the file ``path``, category by category in the papers' order.

    Args:
        path: Spec-Bench's ``question.jsonl``; SPEED-Bench's rows as JSONL or Parquet, as its preparation writes them;
            ``HumanEval.jsonl``, which may be compressed (``.gz``).
        count: number of questions, taken round robin over the categories.

    Raises:
        InvalidRequestError: the file cannot be read, or belongs to another suite.
        ConfigError: the file is Parquet, and pyarrow is missing.
    """
    suite = SUITES[name]
    questions = [_question(name, path, number, row) for number, row in enumerate(_rows(path), 1)]
    picked = pick(path, questions, count=count, categories=categories, max_chars=max_chars)
    order = list(suite.headings)
    return sorted(picked, key=lambda question: order.index(question.category))


def _rows(path: Path) -> list[Any]:
    try:
        data = path.read_bytes()
        if path.suffix == ".parquet":
            return _parquet(path)
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"prompts={str(path)!r} cannot be read ({error}): give the suite's file") from None
    return parse_rows(path, text)


def _parquet(path: Path) -> list[Any]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise ConfigError(
            f"{path} is Parquet, which needs pyarrow: pip install pyarrow, or give the rows as JSONL"
        ) from None
    try:
        rows: list[Any] = parquet.read_table(path).to_pylist()
    except ArrowException as error:
        raise InvalidRequestError(f"prompts={str(path)!r} is not a Parquet file: {error}") from None
    return rows


def _question(name: str, path: Path, number: int, row: Any) -> Question:
    suite = SUITES[name]
    if not isinstance(row, dict) or not {suite.wanted, "messages"} & row.keys():
        raise InvalidRequestError(f"line {number} of {path} has no {suite.wanted}: is it a file of {suite.title}?")
    question = parse_question(path, number, row)
    if not all(isinstance(text, str) for text in (question.text, *question.later)):
        raise InvalidRequestError(f"line {number} of {path} has a turn that is no text: is it a file of {suite.title}?")
    if _PLACEHOLDER in json.dumps([question.text, *question.later]):
        raise InvalidRequestError(
            f"line {number} of {path} holds a placeholder instead of its prompt: fetch the full data with "
            "SPEED-Bench's own prepare script first"
        )
    category = "humaneval" if name == "humaneval" else question.category.lower()
    if name == "spec-bench" and category in MT_BENCH:
        category = "mt_bench"
    if category not in suite.headings:
        raise InvalidRequestError(
            f"line {number} of {path} has category={category!r}, but {suite.title} has {', '.join(suite.headings)}"
        )
    return replace(question, category=category, chat=True)
