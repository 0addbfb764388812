"""Conversations of the agents of ``benchmarks.agent_trace``: texts, tools and replies, made by chance from a seed."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

Messages = list[dict[str, Any]]

NOUNS = ["file", "test", "branch", "server", "index", "table", "report", "queue", "commit", "schema", "parser", "token",
         "cache", "request", "page", "user"]  # fmt: skip
VERBS = ["reads", "writes", "checks", "moves", "opens", "merges", "splits", "counts", "renames", "compares", "sorts",
         "prints", "closes", "follows"]  # fmt: skip


def prose(rng: random.Random, words: int) -> str:
    """Sentences of so many words."""
    said = [rng.choice(NOUNS if i % 2 == 0 else VERBS) + ("." if i % 11 == 10 else "") for i in range(words)]
    return " ".join(said)


def tools_of() -> Messages:
    """Tools, as requests name them."""
    found = []
    for verb, noun in zip(VERBS, NOUNS, strict=False):
        properties = {"path": {"type": "string"}, noun: {"type": "integer"}}
        function = {"name": f"{verb}_{noun}", "description": f"It {verb} a {noun}.",
                    "parameters": {"type": "object", "properties": properties, "required": ["path"]}}  # fmt: skip
        found.append({"type": "function", "function": function})
    return found


def system_prompt(words: int, tools: Messages, seed: int) -> str:
    """Rules, and tools as JSON; no two seeds share more than the first sentence."""
    shown = f"Tools: {json.dumps([tool['function'] for tool in tools])}\n" if tools else ""
    return f"You are a careful programmer. {prose(random.Random(seed), words)}\n{shown}"


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


@dataclass
class Agent:
    """A conversation that grows: before every turn by a tool's result or a question, behind it by a reply."""

    number: int
    rng: random.Random
    messages: Messages
    tools: Messages
    """The field of that name; empty: none, and replies are prose."""

    def ask(self, turn: int, turns: int) -> str:
        """Append what the agent found. Returns what is particular about this turn: edited, compacted, or nothing."""
        found = {"path": self._path(turn), "lines": prose(self.rng, self.rng.randrange(60, 240))}
        if turn == turns // 2 > 0:
            # A tool's result stands behind its call: both changes keep whole exchanges.
            last = max(i for i, message in enumerate(self.messages) if message["role"] == "user")
            if self.number == 0:
                self.messages = [*self.messages[:last], {"role": "user", "content": prose(self.rng, 60)}]
                return "edited"
            summary = {"role": "user", "content": "So far: " + prose(self.rng, 120)}
            done = {"role": "assistant", "content": "Noted."}
            self.messages = [self.messages[0], summary, done, *self.messages[last:]]
        said = f"Result of read_file: {json.dumps(found)}\nWhat next?"
        calls = self.messages[-1].get("tool_calls", ())
        asked = [{"role": "tool", "tool_call_id": call["id"], "content": said} for call in calls]
        self.messages = [*self.messages, *(asked or [{"role": "user", "content": said}])]
        return "compacted" if turn == turns // 2 > 0 else ""

    def reply(self, turn: int) -> dict[str, Any]:
        """The next scripted reply: prose in every third turn, or without tools; else a few words and a call."""
        text, tool = prose(self.rng, self.rng.randrange(10, 40)), self.rng.randrange(len(VERBS))
        call = {"id": f"call_{self.number}_{turn}", "type": "function",
                "function": {"name": f"{VERBS[tool]}_{NOUNS[tool]}",
                             "arguments": json.dumps({"path": self._path(turn)})}}  # fmt: skip
        said: dict[str, Any] = {"role": "assistant", "content": text}
        return said | ({"tool_calls": [call]} if self.tools and turn % 3 != 2 else {})

    def _path(self, turn: int) -> str:
        return f"src/{self.rng.choice(NOUNS)}_{turn}.py"
