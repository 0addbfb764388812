"""Texts and tools of the agents of ``benchmarks.agent_trace``, made by chance."""

from __future__ import annotations

import json
import random
from typing import Any

NOUNS = ["file", "test", "branch", "server", "index", "table", "report", "queue", "commit", "schema", "parser", "token",
         "cache", "request", "page", "user"]  # fmt: skip
VERBS = ["reads", "writes", "checks", "moves", "opens", "merges", "splits", "counts", "renames", "compares", "sorts",
         "prints", "closes", "follows"]  # fmt: skip


def prose(rng: random.Random, words: int) -> str:
    """Sentences of so many words."""
    said = [rng.choice(NOUNS if i % 2 == 0 else VERBS) + ("." if i % 11 == 10 else "") for i in range(words)]
    return " ".join(said)


def tools_of() -> list[dict[str, Any]]:
    """Tools, as requests name them."""
    found = []
    for verb, noun in zip(VERBS, NOUNS, strict=False):
        properties = {"path": {"type": "string"}, noun: {"type": "integer"}}
        function = {"name": f"{verb}_{noun}", "description": f"It {verb} a {noun}.",
                    "parameters": {"type": "object", "properties": properties, "required": ["path"]}}  # fmt: skip
        found.append({"type": "function", "function": function})
    return found


def system_prompt(words: int, tools: list[dict[str, Any]]) -> str:
    """Rules, and tools as JSON."""
    shown = f"Tools: {json.dumps([tool['function'] for tool in tools])}\n" if tools else ""
    return f"You are a careful programmer. {shown}{prose(random.Random(1), words)}"
