"""Workloads: prompts of many kinds, from a file or built in."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from outrider.errors import InvalidRequestError

MT_BENCH = {"writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"}
"""The categories of MT-bench, which Spec-Bench counts as one."""


@dataclass(frozen=True)
class Question:
    """A prompt of a workload, or a conversation's user messages."""

    id: str
    category: str
    text: str
    chat: bool = True  # a message to answer; else a text to continue
    later: tuple[str, ...] = ()  # the user's messages after the first answer, in a conversation


BUILT_IN: tuple[Question, ...] = (
    Question("b1", "rewrite", "Correct the spelling and repeat the text: Speling is hard, but spelling is usefull. "
             "A sentence with many mistaks is hard to reed, and a sentence without mistakes is easy to read."),
    Question("b2", "summary", "Summarise in two sentences: The river rises in the northern hills, runs south through "
             "three old market towns, and reaches the sea at a wide estuary. For centuries the river carried wool and "
             "timber from the market towns to the estuary; today it carries pleasure boats and supplies the towns "
             "with water."),
    Question("b3", "code", "Write a Python class Point with x and y, and methods add, subtract, scale and norm."),
    Question("b4", "question", "Why is the sky blue? Answer in one paragraph."),
    Question("b5", "writing", "Write a short story about a lighthouse keeper and a lost ship."),
    Question("b6", "list", "List the twelve months with one typical activity for each."),
)  # fmt: skip
"""A small mix without a data set: code, lists and prose, with much and with little to copy."""

STORIES: tuple[Question, ...] = tuple(
    Question(f"s{i}", "story", text, chat=False)
    for i, text in enumerate((
        "Once upon a time, there was a little girl named Lily. She loved to play in the garden. One day, she",
        "Tom and his dog went to the park. They saw a big red ball. Tom said",
        "The little bird was sad because it could not fly. Its mother told it",
        "One day, a boy named Ben found a shiny key under his bed. He wanted to know what it",
        "There was a kind old man who lived in a small house near the sea. Every morning he",
        "Mia had a toy bear. She took the bear everywhere. One rainy day, the bear",
    ), 1)
)  # fmt: skip
"""Openings for models that tell stories rather than answer."""

NAMED = {"mix": BUILT_IN, "stories": STORIES}


def load(
    source: str, *, count: int | None = None, categories: set[str] | None = None, max_chars: int | None = None
) -> list[Question]:
    """Questions of a built-in set by name (``mix``, ``stories``) or of a file, round robin over categories.

    A file is a text, whose paragraphs are continued, or JSONL of one of these kinds: Spec-Bench or MT-bench
    (``turns``), ShareGPT (``conversations``, whose first human message is taken), OpenAI messages (``messages``),
    HumanEval (``prompt``, continued as text). Texts of ``max_chars`` and longer are left out. Built-in questions are
    repeated up to ``count``.

    Raises:
        InvalidRequestError: the file cannot be read as one of these, or has fewer than ``count`` questions.
    """
    if count is not None and count < 1:
        raise InvalidRequestError(f"count={count} is not valid: use at least 1", param="count")
    if source in NAMED:
        questions = [q for q in NAMED[source] if categories is None or q.category in categories]
        if not questions:
            raise InvalidRequestError(f"prompts={source!r} has no category of {sorted(categories or ())}")
        repeats = 1 if count is None else -(-count // len(questions))
        return (questions * repeats)[:count]
    return read(Path(source), count=count, categories=categories, max_chars=max_chars)


def read(
    path: Path, *, count: int | None = None, categories: set[str] | None = None, max_chars: int | None = None
) -> list[Question]:
    """The questions of a file: see ``load``."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        known = ", ".join(NAMED)
        raise InvalidRequestError(f"prompts={str(path)!r} cannot be read ({error}): use {known} or a file") from None
    return pick(path, _questions(path, text), count=count, categories=categories, max_chars=max_chars)


def pick(
    path: Path, questions: Sequence[Question], *, count: int | None, categories: set[str] | None, max_chars: int | None
) -> list[Question]:
    """The ``questions`` of the file ``path`` that the other arguments ask for: see ``load``."""
    groups: dict[str, list[Question]] = defaultdict(list)
    for question in questions:
        if (max_chars is None or len(question.text) < max_chars) and (
            categories is None or question.category in categories
        ):
            groups[question.category].append(question)
    picked = interleaved(groups)
    if not picked or (count is not None and len(picked) < count):
        raise InvalidRequestError(f"{path} has {len(picked)} such questions, but {count or 'some'} were asked for")
    return picked[:count]


def interleaved(groups: dict[str, list[Question]]) -> list[Question]:
    """The first question of each group, in the order of names, then the second of each, and so on."""
    ranks = range(max(map(len, groups.values()), default=0))
    return [groups[name][rank] for rank in ranks for name in sorted(groups) if rank < len(groups[name])]


def _questions(path: Path, text: str) -> list[Question]:
    if path.suffix not in (".json", ".jsonl"):
        parts = [part.strip() for part in text.split("\n\n")]
        return [Question(str(i), "text", part, chat=False) for i, part in enumerate(parts) if part]
    return [
        replace(question, category="mt_bench") if question.category in MT_BENCH and "turns" in row else question
        for number, row in enumerate(parse_rows(path, text), 1)
        for question in [parse_question(path, number, row)]
    ]


def parse_rows(path: Path, text: str) -> list[Any]:
    """The rows of JSONL, or of one JSON list. Raises InvalidRequestError, naming the file."""
    try:
        rows: list[Any]
        rows = json.loads(text) if text.lstrip().startswith("[") else [json.loads(x) for x in text.splitlines() if x]
    except json.JSONDecodeError as error:
        raise InvalidRequestError(f"{path} is not JSONL: {error}") from None
    return rows


def parse_question(path: Path, number: int, row: Any) -> Question:
    """The question of a row. Raises InvalidRequestError, naming its number, if it has none."""
    try:
        category = row.get("category", path.stem)
        name = str(row.get("question_id", row.get("id", row.get("task_id", number))))
        if "turns" in row:
            first, *later = row["turns"]
            return Question(name, category, first, later=tuple(later))
        if "conversations" in row:
            human = next(m["value"] for m in row["conversations"] if m["from"] in ("human", "user"))
            return Question(name, category, human)
        if "messages" in row:
            first, *later = (m["content"] for m in row["messages"] if m["role"] == "user")
            return Question(name, category, first, later=tuple(later))
        return Question(name, category, row["prompt"], chat=False)
    except (AttributeError, KeyError, StopIteration, TypeError, ValueError):
        raise InvalidRequestError(
            f"line {number} of {path} has no prompt: give turns, conversations, messages or prompt"
        ) from None


def token_ids(tokenizer: Any, questions: Sequence[Question]) -> list[list[int]]:
    """Token ids of each question: as a chat message if the model has a chat template, else as plain text."""
    return [
        tokenizer.encode_chat([{"role": "user", "content": q.text}])
        if q.chat and tokenizer.chat_template
        else tokenizer.encode(q.text)
        for q in questions
    ]
