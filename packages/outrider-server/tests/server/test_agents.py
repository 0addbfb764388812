"""Requests as coding agents send them (recorded, and shortened), to a model whose template knows no tools.

Its template takes one system message, in front, as many do.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest

from outrider import LLM
from tests.model_folders import model_folder
from tests.server.live import Live
from tests.server.scripted import saying
from tests.server.test_chat import _set_template
from tests.server.test_other_apis import events

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
TEMPLATE = (
    "{% for m in messages %}"
    "{% if m.role == 'system' and not loop.first %}{{ raise_exception('the system speaks first') }}{% endif %}"
    "{% if m.role not in ('system', 'user', 'assistant') %}{{ raise_exception('who is ' ~ m.role) }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
FUNCTION = {"name": "run", "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}}}}
TOOLS = [{"type": "function", "function": FUNCTION}]
CALL = '<tool_call>\n{"name": "run", "arguments": {"cmd": "ls"}}\n</tool_call>'

CLAUDE_CODE: dict[str, Any] = {
    "model": "tiny",
    "max_tokens": 32000,
    "messages": [
        {"role": "user", "content": [
            {"type": "text", "text": "<system-reminder>\nToday is Friday.\n</system-reminder>"},
            {"type": "text", "text": "list the files", "cache_control": {"type": "ephemeral"}}]},
        {"role": "system", "content": "Available agent types: none"},
    ],
    "system": [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.197.06e; cc_entrypoint=sdk-cli;"},
        {"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral"}},
    ],
    "tools": [{"name": "run", "description": "Runs.", "input_schema": FUNCTION["parameters"]}],
    "metadata": {"user_id": '{"device_id":"1","account_uuid":"","session_id":"2"}'},
    "thinking": {"type": "adaptive"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "high"},
}  # fmt: skip
"""Of Claude Code 2.1.197, by ``/v1/messages?beta=true``."""

CODEX: dict[str, Any] = {
    "model": "tiny",
    "input": [
        {"type": "message", "id": "msg_1", "role": role, "content": [{"type": "input_text", "text": text}]}
        for role, text in (("developer", "Be brief."), ("developer", "Skills: -"), ("user", "close it"))
    ],
    "tools": [
        {"type": "function", "name": "run", "strict": False, "parameters": {"type": "object"}},
        {"type": "namespace", "name": "agents", "description": "Sub-agents.", "tools": [
            {"type": "function", "name": "close", "strict": False, "parameters": {"type": "object"}}]},
        {"type": "web_search", "external_web_access": False},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"summary": "auto"},
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "01a21b13",
    "client_metadata": {"session_id": "01a21b13"},
    "temperature": 0,
}  # fmt: skip
"""Of Codex 0.171.0."""


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = model_folder(tmp_path_factory.mktemp("agents") / "tiny", max_position_embeddings=4096)
    _set_template(folder, TEMPLATE)
    with Live(LLM(str(folder), draft="none", threads=1)) as server:
        yield server


def prompt(agent: Live, body: dict[str, Any]) -> str:
    text: str = agent.post("/apply-template", body)["prompt"]
    return text


def test_claude_code_gets_its_tool_call(agent: Live) -> None:
    counted = {name: CLAUDE_CODE[name] for name in ("model", "messages", "system", "tools", "thinking")}
    length = agent.post("/v1/messages/count_tokens", counted)["input_tokens"]
    with saying(agent.service.engine.llm, CALL, after=length):
        told = events(agent, f"{MESSAGES}?beta=true", CLAUDE_CODE | {"temperature": 0})
    (block,) = [event["content_block"] for event in told if event["type"] == "content_block_start"]
    assert (block["type"], block["name"]) == ("tool_use", "run")
    (delta,) = [event["delta"] for event in told if event["type"] == "content_block_delta"]
    assert json.loads(delta["partial_json"]) == {"cmd": "ls"}
    assert next(event for event in told if event["type"] == "message_delta")["delta"]["stop_reason"] == "tool_use"
    later = deepcopy(counted)
    later["system"][0]["text"] = "x-anthropic-billing-header: cc_version=2.1.198.longer; cc_entrypoint=sdk-cli;"
    assert agent.post("/v1/messages/count_tokens", later)["input_tokens"] == length


def test_codex_calls_a_function_of_a_namespace(agent: Live) -> None:
    length = agent.post(RESPONSES, CODEX | {"max_output_tokens": 1})["usage"]["input_tokens"]
    text = '<tool_call>{"name": "agents.close", "arguments": {}}</tool_call>'
    with saying(agent.service.engine.llm, text, after=length):
        told = events(agent, RESPONSES, CODEX)
    (call,) = told[-1]["response"]["output"]
    assert (call["type"], call["name"], call["namespace"]) == ("function_call", "close", "agents")
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "closed"}
    again = agent.post(RESPONSES, CODEX | {"input": [*CODEX["input"], call, result], "max_output_tokens": 1})
    assert again["usage"]["input_tokens"] > length + len("closed")
    refused = agent.client.post(RESPONSES, json=CODEX | {"tools": CODEX["tools"][2:]})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tools")


def test_a_template_without_tools_is_told_of_them_in_the_system_message(agent: Live) -> None:
    called = {"id": "c1", "type": "function", "function": {"name": "run", "arguments": '{"cmd": "ls"}'}}
    turns = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "list"},
        {"role": "assistant", "content": "", "tool_calls": [called]},
        {"role": "tool", "tool_call_id": "c1", "content": "a.txt"},
        {"role": "tool", "tool_call_id": "c2", "content": "b.txt"},
        {"role": "user", "content": "and?"},
    ]
    text = prompt(agent, {"messages": turns, "tools": TOOLS})
    system, _, rest = text.partition("\n<user>")
    assert system.startswith("<system>be brief\n\n# Tools")
    assert json.dumps(TOOLS[0]) in system
    assert rest == (
        'list\n<assistant><tool_call>{"name": "run", "arguments": {"cmd": "ls"}}</tool_call>\n'
        "<user><tool_response>\na.txt\n</tool_response>\n\n<tool_response>\nb.txt\n</tool_response>\n\nand?\n<assistant>"
    )
    untold = [turns[0], turns[1]]
    assert prompt(agent, {"messages": untold}) == "<system>be brief\n<user>list\n<assistant>"


def test_without_tools_a_forced_call_is_one_all_the_same(agent: Live) -> None:
    look = {"type": "object", "properties": {"far": {"type": "boolean"}}, "required": ["far"]}
    tools = [{"type": "function", "function": {"name": "look", "parameters": look | {"additionalProperties": False}}}]
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": "list"}], "tools": tools}
    (call,) = agent.post(CHAT, asked | {"tool_choice": "required", "seed": 1})["choices"][0]["message"]["tool_calls"]
    assert isinstance(json.loads(call["function"]["arguments"])["far"], bool)


@pytest.mark.parametrize("single", [True, False])
def test_parallel_calls_can_be_turned_off(agent: Live, single: bool) -> None:
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": "list"}], "tools": TOOLS, "temperature": 0}
    asked |= {"parallel_tool_calls": False} if single else {}
    length = agent.post(CHAT, asked | {"max_tokens": 1})["usage"]["prompt_tokens"]
    with saying(agent.service.engine.llm, f"first\n{CALL}\n{CALL}\nlast", after=length):
        message = agent.post(CHAT, asked)["choices"][0]["message"]
        chunks = agent.stream(CHAT, asked)
    assert len(message["tool_calls"]) == (1 if single else 2)
    assert message["content"] == ("first\n" if single else "first\nlast")
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert sum(len(delta.get("tool_calls", ())) for delta in deltas) == (1 if single else 2)
    assert "".join(delta.get("content", "") for delta in deltas) == message["content"]
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_later_system_messages_go_where_the_template_takes_them(agent: Live) -> None:
    said = [("system", "one"), ("developer", "two"), ("user", "hello"), ("system", "three"), ("assistant", "yes")]
    messages = [{"role": role, "content": text} for role, text in said]
    assert prompt(agent, {"messages": messages}) == (
        "<system>one\n\ntwo\n<user>hello\n\nthree\n<assistant>yes\n<assistant>"
    )


def test_agents_are_told_of_a_full_context_in_their_own_words(agent: Live) -> None:
    long = {"messages": [{"role": "user", "content": "hello " * 4096}], "max_tokens": 5}
    error = agent.client.post(CHAT, json=long).json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
    error = agent.client.post(MESSAGES, json=long).json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["message"].startswith("prompt is too long: ")


def test_anthropic_s_client_learns_that_there_are_no_threads(agent: Live) -> None:
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 1, "thread": {"type": "create"}}
    answer = agent.client.post(MESSAGES, json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["details"]["error_code"] == "thread_unsupported_request"
