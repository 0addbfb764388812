"""Harmony: thinking, text and calls by channel and recipient, however an answer is cut into pieces."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider_server.answer.harmony import HarmonyParser
from outrider_server.answer.parser import Answer

OPEN = "<|start|>assistant"
THINK = "<|channel|>analysis<|message|>I look.\n<|end|>" + OPEN
FINAL = "<|channel|>final<|message|>"
CALL = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}'
SAY = "<|channel|>commentary<|message|>Wait.<|end|>" + OPEN
CASES: dict[str, tuple[str, str, str, list[tuple[str, Any]]]] = {
    "text": (FINAL + "Yes <b>.<|return|>", "", "Yes <b>.", []),
    "not ended": (FINAL + "Yes <|en", "", "Yes <|en", []),
    "thinking": (THINK + FINAL + "Yes", "I look.\n", "Yes", []),
    "thinking, cut": ("<|channel|>analysis<|message|>I lo", "I lo", "", []),
    "a header, cut": (THINK + "<|channel|>fin", "I look.\n", "", []),
    "a call": (THINK + CALL + "<|call|>", "I look.\n", "", [("f", {"a": 1})]),
    "a call whose end the output leaves out": (CALL, "", "", [("f", {"a": 1})]),
    "a recipient before the channel": (
        ' to=functions.f<|channel|>commentary json<|message|>{"a": 1}<|call|>', "", "", [("f", {"a": 1})],
    ),
    "words before a call": (THINK + SAY + CALL, "I look.\n", "Wait.", [("f", {"a": 1})]),
    "two calls": (f"{CALL}<|call|>{OPEN}{CALL}", "", "", [("f", {"a": 1})] * 2),
    "words before the answer": (SAY + FINAL + "Yes", "", "Wait.\n\nYes", []),
    "thinking twice": (THINK + THINK + FINAL + "Yes", "I look.\n\n\nI look.\n", "Yes", []),
    "no arguments": ("<|channel|>commentary to=functions.g<|message|><|call|>", "", "", [("g", {})]),
    "a tool of the model's own": ('<|channel|>commentary to=browser.open<|message|>{}<|call|>', "", "", [
        ("browser.open", {})]),
    "no harmony": ("Yes, of course", "", "Yes, of course", []),
}  # fmt: skip


def parsed(text: str, cuts: list[int], **options: Any) -> Answer:
    given: dict[str, Any] = {"prompt": "<|end|>" + OPEN, "tools": True} | options
    parser = HarmonyParser(**given)
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    for start, stop in itertools.pairwise(places):
        parser.push(text[start:stop])
    parser.push("", end=True)
    return parser.answer


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@settings(max_examples=40)
@given(cuts=st.lists(st.integers(0, 400), max_size=12))
def test_channels_and_recipients(case: Any, cuts: list[int]) -> None:
    text, thinking, shown, calls = case
    answer = parsed(text, cuts)
    assert (answer.thinking, answer.text) == (thinking, shown)
    assert [(call.name, json.loads(call.arguments)) for call in answer.calls] == calls


def test_a_prompt_may_have_opened_the_message() -> None:
    assert parsed("es.<|return|>", [], prompt=f"{OPEN}{FINAL}Y").text == "es."
    assert parsed("look.", [], prompt=f"{OPEN}<|channel|>analysis<|message|>I ").thinking == "look."
    assert parsed("es.", [], prompt="in the midst of a text").text == "es."


def test_without_tools_a_call_is_text_and_a_forced_one_is_the_final_message() -> None:
    assert parsed(CALL, [], tools=False).text == '{"a": 1}'
    forced = parsed(THINK + FINAL + '{"name": "f", "arguments": {"a": 1}}', [70, 95], forced=True)
    assert [(call.name, call.arguments) for call in forced.calls] == [("f", '{"a": 1}')]
    assert (forced.thinking, forced.text) == ("I look.\n", "")


def test_thinking_and_text_are_shown_as_they_come() -> None:
    parser = HarmonyParser(OPEN, tools=True)
    pieces = ["<|channel|>analysis<|message|>I", " look.<|end|>" + OPEN, FINAL + "Y", "es"]
    assert [[(p.kind, p.text) for p in parser.push(piece)] for piece in pieces] == [
        [("thinking", "I")], [("thinking", " look.")], [("text", "Y")], [("text", "es")],
    ]  # fmt: skip
