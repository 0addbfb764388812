"""Spec-Bench questions (https://github.com/hemingkx/Spec-Bench) or any JSONL with ``category`` and ``turns``."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

_MT_BENCH = {"writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"}


@dataclass(frozen=True)
class Question:
    id: str
    category: str
    text: str


def read(path: Path, *, count: int, categories: set[str] | None = None, max_chars: int = 4500) -> list[Question]:
    """The first turns of ``count`` questions, taken round robin over categories, long ones left out."""
    groups: dict[str, list[Question]] = defaultdict(list)
    for line in path.read_text().splitlines():
        row = json.loads(line)
        category = "mt_bench" if row["category"] in _MT_BENCH else row["category"]
        text = row["turns"][0]
        if len(text) < max_chars and (categories is None or category in categories):
            groups[category].append(Question(str(row["question_id"]), category, text))
    picked: list[Question] = []
    for rank in range(max((len(g) for g in groups.values()), default=0)):
        picked += [groups[c][rank] for c in sorted(groups) if rank < len(groups[c])]
    if len(picked) < count:
        raise SystemExit(f"{path} has only {len(picked)} such questions, {count} were asked for")
    return picked[:count]


BUILT_IN = [
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
]  # fmt: skip
"""A small mix for machines without the data set."""
