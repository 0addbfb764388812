"""Thinking, text and tool calls, in the notations of several families, however an answer is cut into pieces."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider_server.answer.formats import BARE, THINKING, TOOL_FORMATS, WRAPPERS
from outrider_server.answer.parser import Answer, AnswerParser

FORMS = {form.opening: form for form in reversed(TOOL_FORMATS)}
GLM, MISTRAL, LLAMA = FORMS["<tool_call>"], FORMS["[TOOL_CALLS]"], FORMS["<|python_tag|>"]
HERMES = next(form for form in TOOL_FORMATS if form.opening == GLM.opening and form is not GLM)
G4 = FORMS["<|tool_call>"]
THINK = THINKING[0]
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
    "bare, a link": (BARE, "[a link](there)", "[a link](there)", []),
    "bare, python's": (BARE, "[f(a=1), f(a=2)]", "", [{"a": 1}, {"a": 2}]),
    "bare, another's": (BARE, "[g(a=1)]", "[g(a=1)]", []),
    "no tools": (None, f"<tool_call>{ONE}", f"<tool_call>{ONE}", []),
}  # fmt: skip
XML = "<function=f>\n<parameter=a>12</parameter>\n<parameter=b>12</parameter>\n</function>\n"
KEYS = "\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n<arg_key>b</arg_key>\n<arg_value>two\nlines</arg_value>\n"
SEP, BEGIN, END = "<｜tool▁sep｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
FENCED = f'{BEGIN}function{SEP}f\n```json\n{{"a": 1}}\n```{END}'
D = "｜DSML｜"
DSML = (
    f'<{D}invoke name="f">\n<{D}parameter name="a" string="false">1</{D}parameter>\n'
    f'<{D}parameter name="b" string="true">1</{D}parameter>\n</{D}invoke>'
)
INVOKE = '<invoke name="f">\n<parameter name="a">1</parameter>\n<parameter name="b">1</parameter>\n</invoke>'
ARGUMENTS = '{"a": 1}'
KIMI = "<|tool_call_begin|>functions.f:{}<|tool_call_argument_begin|>{}<|tool_call_end|>"
NESTED = {"a": -1.5e3, "b": "it's {1, 2}", "c": {"d": [True, None, "x"], "e": {}}, "f": []}
GEMMA = 'call:f{a:-1.5e3,b:<|"|>it\'s {1, 2}<|"|>,c:{d:[true,null,<|"|>x<|"|>],e:{}},f:[]}'
CASES |= {
    "glm 4.5": (GLM, f"hm\n<tool_call>f{KEYS}</tool_call>", "hm\n", [{"a": 1, "b": "two\nlines"}]),
    "glm 4.7": (GLM, "<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>" * 2, "", [{"a": 1}] * 2),
    "glm, no arguments": (GLM, "<tool_call>f</tool_call>", "", [{}]),
    "glm, no call": (GLM, "<tool_call>no tool</tool_call>", "<tool_call>no tool</tool_call>", []),
    "glm, not closed": (GLM, f"<tool_call>f{KEYS}", "", [{"a": 1, "b": "two\nlines"}]),
    "deepseek r1": (FORMS[BEGIN], f"<｜tool▁calls▁begin｜>{FENCED}\n{FENCED}<｜tool▁calls▁end｜>", "", [{"a": 1}] * 2),
    "deepseek v3.1": (
        FORMS[BEGIN],
        f'so<｜tool▁calls▁begin｜>{BEGIN}f{SEP}{{"a": 1}}{END}{BEGIN}f{SEP}{{}}{END}<｜tool▁calls▁end｜>',
        "so",
        [{"a": 1}, {}],
    ),
    "deepseek, cut": (FORMS[BEGIN], f'{BEGIN}f{SEP}{{"a": 1}}<｜tool▁calls▁end｜>', "", [{"a": 1}]),
    "deepseek, no call": (FORMS[BEGIN], f"{BEGIN}f{SEP}oh{END}", f"{BEGIN}f{SEP}oh{END}", []),
    "deepseek v3.2": (
        FORMS[f"<{D}invoke name="],
        f"so\n\n<{D}function_calls>\n{DSML}\n{DSML}\n</{D}function_calls>",
        "so\n\n",
        [{"a": 1, "b": "1"}] * 2,
    ),
    "kimi k2": (
        FORMS["<|tool_call_begin|>"],
        f"so<|tool_calls_section_begin|>{KIMI.format(0, '{}')}{KIMI.format(1, ARGUMENTS)}<|tool_calls_section_end|>",
        "so",
        [{}, {"a": 1}],
    ),
    "minimax m2": (
        FORMS["<invoke name="],
        f"so\n<minimax:tool_call>\n{INVOKE}\n<invoke name=\"f\">\n</invoke>\n</minimax:tool_call>",
        "so\n",
        [{"a": 1, "b": "1"}, {}],
    ),
    "gemma 4": (G4, f"<|tool_call>{GEMMA}<tool_call|><|tool_call>call:f{{}}<tool_call|>", "", [NESTED, {}]),
    "gemma 4, no call": (G4, "<|tool_call>call:f{a}<tool_call|>", "<|tool_call>call:f{a}<tool_call|>", []),
    "seed": (FORMS["<seed:tool_call>"], f"<seed:tool_call>\n{XML}</seed:tool_call>", "", [{"a": 12, "b": "12"}]),
    "nemotron 2": (FORMS["<TOOLCALL>"], f"<TOOLCALL>[{ONE}, {ONE}]</TOOLCALL>", "", [{"a": 1}] * 2),
    "nemotron 3": (HERMES, f"<tool_call>\n{XML}</tool_call>\n" * 2, "", [{"a": 12, "b": "12"}] * 2),
    "hunyuan": (FORMS["<tool_calls>"], f"<tool_calls>[{ONE},{ONE}]</tool_calls>", "", [{"a": 1}] * 2),
    "granite 3": (FORMS["<|tool_call|>"], f"<|tool_call|>[{ONE}]", "", [{"a": 1}]),
    "granite 4": (HERMES, f"so\n<tool_call>\n{ONE}\n</tool_call>", "so\n", [{"a": 1}]),
    "ministral": (MISTRAL, 'so[TOOL_CALLS]f[CALL_ID]123456789[ARGS]{"a": 1}', "so", [{"a": 1}]),
    "lfm2": (
        FORMS["<|tool_call_start|>"],
        "so<|tool_call_start|>[f(a=-1, b='two', c=[true, None], d={\"e\": null}), f()]<|tool_call_end|> yes",
        "so yes",
        [{"a": -1, "b": "two", "c": [True, None], "d": {"e": None}}, {}],
    ),
    "lfm2, no call": (
        FORMS["<|tool_call_start|>"],
        "<|tool_call_start|>[f(1)]<|tool_call_end|>",
        "<|tool_call_start|>[f(1)]<|tool_call_end|>",
        [],
    ),
    "llama 4": (FORMS["<|python_start|>"], "[f(a=1, b='x')]", "", [{"a": 1, "b": "x"}]),
    "llama 4, marked": (FORMS["<|python_start|>"], "<|python_start|>[f(a=1)]<|python_end|>", "", [{"a": 1}]),
    "llama 4, json": (FORMS["<|python_start|>"], '{"name": "f", "parameters": {"a": 1}}', "", [{"a": 1}]),
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


def test_the_ids_that_models_write_are_kept() -> None:
    for opening, text, ids in (
        ("<|tool_call_begin|>", KIMI.format(0, "{}") + KIMI.format(12, "{}"), ["functions.f:0", "functions.f:12"]),
        ("[TOOL_CALLS]", "[TOOL_CALLS]f[CALL_ID]a1B2c3D4e[ARGS]{}[TOOL_CALLS]f[ARGS]{}", ["a1B2c3D4e", None]),
        (BEGIN, FENCED, [None]),
    ):
        assert [call.id for call in parsed(text, FORMS[opening], []).calls] == ids


def test_each_call_comes_as_soon_as_it_is_whole() -> None:
    parser = AnswerParser(None, FORMS["<|tool_call_begin|>"], schemas=SCHEMAS)
    parser.push("<|tool_calls_section_begin|>" + KIMI.format(0, "{}"))
    assert len(parser.answer.calls) == 1
    parser.push(KIMI.format(1, "{}")[:-1])
    assert len(parser.answer.calls) == 1
    parser.push("><|tool_calls")
    assert len(parser.answer.calls) == 2
    parser.push("_section_end|>", end=True)
    assert parser.answer.text == ""


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "string"}, "12"),
        ({"type": "integer"}, 12),
        ({"type": ["integer", "null"]}, 12),
        ({"type": ["string", "null"]}, "12"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, 12),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "12"),
        ({"enum": [12, 13]}, 12),
        ({"enum": ["12", 13]}, "12"),
        ({}, "12"),
        (True, "12"),
    ],
)
def test_the_schema_says_which_values_are_text(schema: Any, value: Any) -> None:
    text = "<tool_call>f<arg_key>x</arg_key><arg_value>12</arg_value></tool_call>"
    parser = AnswerParser(None, GLM, schemas={"f": {"properties": {"x": schema}}})
    parser.push(text, end=True)
    assert json.loads(parser.answer.calls[0].arguments) == {"x": value}


@pytest.mark.parametrize("form", THINKING, ids=[form.closing for form in THINKING])
@given(cuts=st.lists(st.integers(0, 99), max_size=12))
def test_the_thinking_of_each_family(form: Any, cuts: list[int]) -> None:
    text = f"{form.opening}\na <b\n{form.closing}\n\nc"
    parser = AnswerParser(form, None)
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    for start, stop in itertools.pairwise(places):
        parser.push(text[start:stop])
    parser.push("", end=True)
    assert (parser.answer.thinking, parser.answer.text) == ("a <b", "c")


@given(cuts=st.lists(st.integers(0, 99), max_size=12))
def test_a_wrapper_around_the_answer_is_no_text(cuts: list[int]) -> None:
    def unwrapped(text: str, **options: Any) -> tuple[str, int]:
        answer = parsed(text, HERMES, cuts, wrapper=WRAPPERS[0], **options)
        return answer.text, len(answer.calls)

    assert unwrapped("<think>\na\n</think>\n\n<response>\nb\n\nc\n</response>\n") == ("b\n\nc", 0)
    assert unwrapped("<response>\nb </resp") == ("b </resp", 0)
    assert unwrapped("<resp") == ("<resp", 0)
    assert unwrapped("b <response>\nc") == ("b <response>\nc", 0)
    assert unwrapped(f"<think>a</think>\n\n<tool_call>\n{ONE}\n</tool_call>\n") == ("", 1)
    assert unwrapped(f"<response>b</response>\n<tool_call>{ONE}</tool_call>") == ("b", 1)


@pytest.mark.parametrize("form", TOOL_FORMATS, ids=[f"{form.opening} {form.told_by}" for form in TOOL_FORMATS])
@settings(max_examples=60)
@given(data=st.data())
def test_whatever_follows_a_marker_ends_as_text_or_as_calls(form: Any, data: Any) -> None:
    """Nothing raises, and text that is no call is all there."""
    marks = [*form.markers, "{", "}", "[", "]", "f(", "a=", ")", '"', ":", "f", "\n", ",", "1", "<function=", ">", "\\"]
    pieces = data.draw(st.lists(st.sampled_from(marks), max_size=14))
    parser = AnswerParser(None, form, schemas=SCHEMAS)
    shown = [part for piece in pieces for part in parser.push(piece)] + parser.push("", end=True)
    if not parser.answer.calls and not form.around:
        assert "".join(part.text for part in shown) == "".join(pieces)
    assert [type(json.loads(call.arguments)) for call in parser.answer.calls] == [dict] * len(parser.answer.calls)
