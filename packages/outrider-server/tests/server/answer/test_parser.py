"""Thinking, text and tool calls, in the notations of several families, however an answer is cut into pieces."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider_server.answer.formats import BARE, TOOL_FORMATS
from outrider_server.answer.parser import Answer, AnswerParser

HERMES, MISTRAL, LLAMA = TOOL_FORMATS
THINK = ("<think>", "</think>")
ONE = '{"name": "f", "arguments": {"a": 1}}'
SCHEMAS = {"f": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}}
CASES: dict[str, tuple[Any, str, str, list[Any]]] = {
    "hermes": (HERMES, f"look: <tool_call>{ONE}</tool_call>\n<tool_call>{ONE}</tool_call>", "look: ", [{"a": 1}] * 2),
    "hermes, not closed": (HERMES, f"<tool_call>{ONE}", "", [{"a": 1}]),
    "hermes, no call": (HERMES, "<tool_call>oh</tool_call> <tool", "<tool_call>oh</tool_call> <tool", []),
    "xml": (
        HERMES,
        "<tool_call>\n<function=f>\n<parameter=a>\n12\n</parameter>\n<parameter=b>\n12\n</parameter>\n</function>\n"
        "</tool_call>",
        "",
        [{"a": 12, "b": "12"}],
    ),
    "mistral": (MISTRAL, f"so [TOOL_CALLS][{ONE}, {ONE}]", "so ", [{"a": 1}] * 2),
    "mistral, named": (MISTRAL, 'x[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]f{"a": 2}', "x", [{"a": 1}, {"a": 2}]),
    "llama": (LLAMA, '{"name": "f", "parameters": {"a": 1}}', "", [{"a": 1}]),
    "llama, tagged": (LLAMA, f"<|python_tag|>{ONE}; {ONE}", "", [{"a": 1}] * 2),
    "llama, text": (LLAMA, "it is <b>", "it is <b>", []),
    "llama, an object": (LLAMA, '{"name": "Ann"}', '{"name": "Ann"}', []),
    "bare": (BARE, ONE, "", [{"a": 1}]),
    "no tools": (None, f"<tool_call>{ONE}", f"<tool_call>{ONE}", []),
}  # fmt: skip


def parsed(text: str, tools: Any, cuts: list[int], **options: Any) -> Answer:
    parser = AnswerParser(THINK, tools, schemas=SCHEMAS, **options)
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    for start, stop in itertools.pairwise(places):
        parser.push(text[start:stop])
    parser.push("", end=True)
    return parser.answer


@pytest.mark.parametrize("thinks", ["", "<think>\nwell <tool_call>\n</think>\n\n"], ids=["", "after thinking"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@settings(max_examples=40)
@given(cuts=st.lists(st.integers(0, 400), max_size=12))
def test_calls_of_each_family(case: Any, thinks: str, cuts: list[int]) -> None:
    tools, text, shown, arguments = case
    answer = parsed(thinks + text, tools, cuts)
    assert answer.text == shown
    assert [call.name for call in answer.calls] == ["f"] * len(arguments)
    assert [json.loads(call.arguments) for call in answer.calls] == arguments
    assert answer.thinking == ("well <tool_call>" if thinks else "")


@given(cuts=st.lists(st.integers(0, 99), max_size=12))
def test_where_thinking_begins_and_ends(cuts: list[int]) -> None:
    def split(text: str, **options: Any) -> tuple[str, str]:
        answer = parsed(text, None, cuts, **options)
        return answer.thinking, answer.text

    assert split("\n<think>\na\n\nb\n</think>\n\nc\n") == ("a\n\nb", "c\n")
    assert split("<think></think>c") == ("", "c")
    assert split("a</think>c", inside_thinking=True) == ("a", "c")
    assert split("a</thin", inside_thinking=True) == ("a</thin", "")
    assert split("  no <think>a</think>") == ("", "  no <think>a</think>")
    assert split("<thin") == ("", "<thin")
