"""Chats in the manner of Qwen3.5: the prompt opens the thinking, and tool calls are written as XML."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.conftest import load
from tests.server.live import Live
from tests.server.scripted import saying
from tests.server.test_thinking import thinking_folder

PATH = "/v1/chat/completions"
ASK = [{"role": "user", "content": "hello"}]
PARAMETERS = {"type": "object", "properties": {"place": {"type": "string"}, "days": {"type": "integer"}}}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": PARAMETERS}}]
TEMPLATE = (
    "{%- if tools %}<tools>{% for tool in tools %}\n{{ tool | tojson }}{% endfor %}\n</tools> Answer with <tool_call>\n"
    "<function=name>\n<parameter=a>\nvalue\n</parameter>\n</function>\n</tool_call>\n{% endif %}"
    "{%- for m in messages %}<|user|>{{ m.role }}\n"
    "{%- if m.reasoning_content is string %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content }}"
    "{%- for c in m.tool_calls or [] %}<tool_call>\n<function={{ c.function.name }}>\n"
    "{% for name, value in c.function.arguments | items %}<parameter={{ name }}>\n"
    "{{ value | tojson if value is mapping or (value is sequence and value is not string) else value | string }}\n"
    "</parameter>\n{% endfor %}</function>\n</tool_call>{% endfor %}{{ eos_token }}\n{% endfor %}"
    "{%- if add_generation_prompt %}assistant\n{% if enable_thinking is defined and enable_thinking is false %}"
    "{{ '<think>\n\n</think>\n\n' }}{% else %}{{ '<think>\n' }}{% endif %}{% endif %}"
)
CALL = (
    "<tool_call>\n<function=look>\n<parameter=place>\nthe world\n</parameter>\n<parameter=days>\n12\n</parameter>\n"
    "</function>\n</tool_call>"
)
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"far": {"type": "boolean"}}, "required": ["far"]}
SCHEMA["additionalProperties"] = False


@pytest.fixture(scope="module")
def chatting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = thinking_folder(tmp_path_factory.mktemp("hybrid") / "hybrid", TEMPLATE)
    with Live(load(folder), name="hybrid") as server:
        yield server


def length(chatting: Live, **fields: Any) -> int:
    count: int = chatting.post(f"{PATH}/input_tokens", {"messages": ASK} | fields)["input_tokens"]
    return count


def test_a_call_behind_the_thinking_that_the_prompt_opened(chatting: Live) -> None:
    greedy = {"messages": ASK, "tools": TOOLS, "temperature": 0, "max_tokens": 300}
    with saying(chatting.service.engine.llm, f"hello world\n</think>\n\n{CALL}", after=length(chatting, tools=TOOLS)):
        choice = chatting.post(PATH, greedy)["choices"][0]
        chunks = chatting.stream(PATH, greedy)
    message = choice["message"]
    assert (choice["finish_reason"], message["reasoning_content"]) == ("tool_calls", "hello world")
    assert message["content"] is None
    (call,) = message["tool_calls"]
    assert call["function"]["name"] == "look"
    assert json.loads(call["function"]["arguments"]) == {"place": "the world", "days": 12}
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "hello world"
    assert [c["function"] for delta in deltas for c in delta.get("tool_calls", ())] == [call["function"]]


def test_without_thinking_the_answer_is_all_there_is(chatting: Live) -> None:
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    assert length(chatting, **off) == length(chatting, reasoning_effort="none") > length(chatting)
    with saying(chatting.service.engine.llm, f"hello\n{CALL}", after=length(chatting, tools=TOOLS, **off)):
        body = {"messages": ASK, "tools": TOOLS, "temperature": 0, "max_tokens": 300}
        message = chatting.post(PATH, body | off)["choices"][0]["message"]
    assert "reasoning_content" not in message
    assert message["content"] == "hello\n"
    assert len(message["tool_calls"]) == 1


def test_calls_and_thinking_of_earlier_turns_are_written_as_the_model_wrote_them(chatting: Live) -> None:
    arguments = json.dumps({"place": "the world", "days": 12})
    asked = {"id": "1", "type": "function", "function": {"name": "look", "arguments": arguments}}
    turn = {"role": "assistant", "content": "", "reasoning_content": "hello world", "tool_calls": [asked]}
    body = {"messages": [*ASK, turn, {"role": "tool", "tool_call_id": "1", "content": "far"}], "tools": TOOLS}
    text = chatting.post("/apply-template", body)["prompt"]
    assert CALL in text
    assert "<think>\nhello world\n</think>" in text
    assert text.endswith("<think>\n")


def test_a_form_begins_behind_the_thinking_that_the_prompt_opened(chatting: Live) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    body = {"messages": ASK, "response_format": form, "temperature": 0, "max_tokens": 120}
    with saying(chatting.service.engine.llm, 'hello {"far"\n</think>\n\n{"far": true} hello', after=length(chatting)):
        drafted = chatting.post(PATH, body | {"speculation": {"draft": "suffix", "spec_length": 8}})
        plain = chatting.post(PATH, body | {"speculation": "off"})
    message = plain["choices"][0]["message"]
    assert message == drafted["choices"][0]["message"]
    assert message["reasoning_content"] == 'hello {"far"'
    assert isinstance(json.loads(message["content"])["far"], bool)
