"""Requests of the suite: tools, messages and forms made by chance from a seed."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from outrider_lab.certify.tool_calls.notations import NOTATIONS, Named
from outrider_lab.certify.tool_calls.shapes import Object, random_object, random_word

__all__ = ["KINDS", "Case", "Kind", "make_cases"]

Kind = Literal["auto", "required", "named", "nested", "parallel", "history", "thinking", "form", "notation"]
KINDS: Mapping[Kind, str] = {
    "auto": "the model may call",
    "required": "it must call one of two tools",
    "named": "it must call a tool by name",
    "nested": "it must call, with objects and lists within the arguments",
    "parallel": "it is asked for two calls in one answer",
    "history": "it goes on after a call and a result",
    "thinking": "it thinks, then must call",
    "form": "no call: JSON that matches a schema, beside tools that are not used",
    "notation": "text and two calls in the family's own notation, which a grammar forces",
}
FORCED: frozenset[Kind] = frozenset(("required", "named", "nested", "thinking"))
FORCED_TOKENS = 1000  # more than any call of these schemas takes
LEADING = "[a-z ]{0,12}"
"""The text before the calls of a notation."""


@dataclass(frozen=True)
class Case:
    """One request, and the properties of any right answer."""

    index: int
    kind: Kind
    body: Mapping[str, Any]  # without the model, the source of drafts and ``stream``
    tools: Mapping[str, Object]
    form: Object | None = None
    called: tuple[str, ...] = ()
    """The names that the answer must call, in order."""

    @property
    def forced(self) -> bool:
        """Whether a call that matches its schema is required."""
        return self.kind in FORCED or self.kind == "notation"

    @property
    def sampled(self) -> bool:
        """Whether tokens are drawn, with a seed."""
        return bool(self.body["temperature"])

    @property
    def name(self) -> str:
        return f"case {self.index} ({self.kind}, {'seeded' if self.sampled else 'greedy'})"


def make_cases(count: int, seed: int, *, notation: str | None = None, tokens: int = 128) -> list[Case]:
    """``count`` cases of all kinds in turn; every other one is greedy.

    Args:
        notation: a key of ``NOTATIONS``; None: there are no cases of this kind.
        tokens: the most of an answer that nothing forces.
    """
    kinds = [kind for kind in KINDS if kind != "notation" or notation is not None]
    rounds = (divmod(i, len(kinds)) for i in range(count))
    return [
        _case(i, kinds[place], bool((turn + place) % 2), seed, notation, tokens)
        for i, (turn, place) in enumerate(rounds)
    ]


def _case(index: int, kind: Kind, sampled: bool, seed: int, notation: str | None, tokens: int) -> Case:
    rng = random.Random(f"{seed} {index}")
    depth = 2 if kind in ("nested", "form") else 0 if kind == "notation" and rng.random() < 0.5 else 1
    tools = {f"{rng.choice(('get', 'set'))}_{random_word(rng)}": random_object(rng, depth) for _ in range(2)}
    body: dict[str, Any] = {
        "messages": _messages(rng, kind, tools),
        "tools": [_tool(name, shape) for name, shape in tools.items()],
        "max_tokens": tokens if kind in ("auto", "parallel", "history") else FORCED_TOKENS,
        "seed": rng.randrange(2**31),
        "temperature": 1.0 if sampled else 0.0,
    }
    form: Object | None = None
    called: tuple[str, ...] = ()
    if kind in ("required", "nested", "thinking"):
        body["tool_choice"] = "required"
    if kind == "named":
        called = (rng.choice(list(tools)),)
        body["tool_choice"] = {"type": "function", "function": {"name": called[0]}}
    if kind == "thinking":
        body["chat_template_kwargs"] = {"enable_thinking": True}
    if kind == "form":
        form = random_object(rng, depth)
        body["tool_choice"] = "none"
        body["response_format"] = _format(form)
    if kind == "notation" and notation is not None:
        calls: list[Named] = [rng.choice(list(tools.items())) for _ in range(2)]
        called = tuple(name for name, _ in calls)
        body["structured_outputs"] = {"regex": LEADING + NOTATIONS[notation](calls)}
    return Case(index, kind, body, tools, form, called)


def _tool(name: str, shape: Object) -> dict[str, Any]:
    function = {"name": name, "description": f"Does {name}.", "parameters": shape.schema, "strict": True}
    return {"type": "function", "function": function}


def _format(form: Object) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": form.schema, "strict": True}}


def _messages(rng: random.Random, kind: Kind, tools: Mapping[str, Object]) -> list[dict[str, Any]]:
    first, second = tools
    asked = f"Please call {first} about {random_word(rng)}."
    if kind in ("parallel", "notation"):
        asked += f" Call {second} too, in the same answer."
    messages: list[dict[str, Any]] = [{"role": "user", "content": asked}]
    if kind == "history":
        said = {"name": first, "arguments": json.dumps({random_word(rng): rng.randrange(100)})}
        call = {"id": "call00001", "type": "function", "function": said}
        messages += [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call00001", "content": json.dumps([random_word(rng), "ok"])},
            {"role": "user", "content": f"And now {second}."},
        ]
    return messages
