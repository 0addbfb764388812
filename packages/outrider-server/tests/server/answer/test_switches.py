"""What chat templates are told: whether to think, how much, and by which ids calls go."""

from __future__ import annotations

from typing import Any

import pytest

from outrider_server.answer.switches import effort_variables, own_id, thinking_switch
from outrider_server.http.errors import ApiError


@pytest.mark.parametrize(
    ("template", "on", "off"),
    [
        ("{% if enable_thinking is defined %}</think>", {"enable_thinking": True}, {"enable_thinking": False}),
        ("{% set enable_thinking = enable_thinking or x %}", {"enable_thinking": True}, {"enable_thinking": False}),
        ("{% if not thinking is defined %}{% endif %}</think>", {"thinking": True}, {"thinking": False}),
        ("{% if thinking_budget == 0 %}</seed:think>", {}, {"thinking_budget": 0}),
        ("{% set ns = namespace(enable_thinking=true) %}{% if ns.enable_thinking %}</think>", {}, "always thinks"),
        ("{% if message.thinking is defined %}</think>", {}, "always thinks"),
        ("<|channel|><|message|>{{ reasoning_effort }}", {}, "always thinks"),
        ("", "does not think", {}),
    ],
)
def test_thinking_is_switched_by_the_variable_that_the_template_reads(template: str, on: Any, off: Any) -> None:
    for value, expected in ((True, on), (False, off)):
        if isinstance(expected, str):
            with pytest.raises(ApiError, match=expected):
                thinking_switch(template, value, "thinking")
        else:
            assert thinking_switch(template, value, "thinking") == expected


def test_an_effort_of_none_is_told_where_the_template_knows_it() -> None:
    for template, effort, expected in (
        ("{{ reasoning_effort }} 'none' 'high'", "none", "none"),
        ("{{ reasoning_effort }} 'no_think' 'high'", "none", "no_think"),
        ("{{ reasoning_effort }} 'none' 'high'", "high", "high"),
        ("<|channel|><|message|>{{ reasoning_effort }}", "medium", "medium"),
        ("<|channel|><|message|>{{ reasoning_effort }}", "minimal", "low"),
    ):
        assert effort_variables(template, effort) == {"reasoning_effort": expected}
    with pytest.raises(ApiError, match="always thinks"):
        effort_variables("{{ reasoning_effort is none }}</think>", "none")


def test_ids_are_as_the_template_takes_them() -> None:
    short = "{% if tool_call.id is not string or tool_call.id|length != 9 %}"
    assert own_id("", "call_1234567890") == "call_1234567890"
    assert own_id(short, "a1B2c3D4e") == "a1B2c3D4e"
    made = [own_id(short, f"call_{i}") for i in range(100)]
    assert len(set(made)) == 100
    assert all(len(each) == 9 and each.isascii() and each.isalnum() for each in made)
    assert own_id(short, "call_7") == made[7]
