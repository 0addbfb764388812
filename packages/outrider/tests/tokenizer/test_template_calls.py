"""Tool calls of earlier turns in the templates of several families."""

from __future__ import annotations

from typing import Any

import pytest

from outrider.errors import InvalidRequestError
from outrider.tokenizer.chat_template import ChatTemplate

CALLS = (
    "{% for m in messages %}{% if m.role == 'assistant' and WHEN %}"
    "{% for c in m.tool_calls %}{{ c.function.name + ' ' + ARGUMENTS }};{% endfor %}"
    "{% else %}{{ m.role }}: {{ m.content }};{% endif %}{% endfor %}"
)
WRITTEN = "c.function.arguments | tojson"


def rendered(template: str, content: str | None = "") -> str:
    function = {"name": "look", "arguments": '{"far":  1}'}
    turn = {"role": "assistant", "content": content, "tool_calls": [{"type": "function", "function": function}]}
    messages: list[dict[str, Any]] = [{"role": "user", "content": "hi"}, turn]
    return ChatTemplate(template, {}).render(messages, add_generation_prompt=True, read_arguments=True).text


@pytest.mark.parametrize(
    ("when", "arguments", "shown"),
    [
        ("m.tool_calls", WRITTEN, 'look {"far": 1};'),
        ("m.tool_calls", "c.function.arguments", 'look {"far":  1};'),  # DeepSeek: text is joined to text
        ("m.content is none", WRITTEN, 'look {"far": 1};'),  # DeepSeek R1: only a message without a content has calls
        ("m.content is none", "c.function.arguments", 'look {"far":  1};'),
        ("m.content is none and false", WRITTEN, "assistant: ;"),  # a template without calls sees the content as it was
    ],
)
def test_calls_are_written_as_the_template_takes_them(when: str, arguments: str, shown: str) -> None:
    assert rendered(CALLS.replace("WHEN", when).replace("ARGUMENTS", arguments)) == f"user: hi;{shown}"


def test_a_content_that_is_there_stays() -> None:
    template = CALLS.replace("WHEN", "m.content is none").replace("ARGUMENTS", WRITTEN)
    assert rendered(template, "so") == "user: hi;assistant: so;"


CHANGES = (
    "messages.pop()",
    "messages[1].update({'role': 'x'})",
    "messages[1].tool_calls.append(1)",
    "messages[1].tool_calls[0].function.arguments.pop('far')",
    "[].__class__.__mro__",
    "[].clear()",
)


def test_a_template_may_change_its_own_lists_and_no_others() -> None:
    own = "{% set ns = namespace(ids=[], by={}) %}{% for m in messages %}"
    own += "{% set _ = ns.ids.append(m.role) %}{% endfor %}"
    own += "{% set _ = ns.by.update({'a': 1}) %}{{ ns.ids.pop(0) }} {{ ns.ids }} {{ ns.by }}"
    assert rendered(own) == "user ['assistant'] {'a': 1}"
    for change in CHANGES:
        with pytest.raises(InvalidRequestError, match="unsafe"):
            rendered("{{ " + change + " }}")
