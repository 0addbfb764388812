"""Thinking and tool calls in the formats of several families: in every API, streamed, under drafts, with forms."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.answer_formats import FAMILIES, Family, family_folder
from tests.server.conftest import load
from tests.server.live import Live
from tests.server.scripted import saying

CHAT = "/v1/chat/completions"
ASK = [{"role": "user", "content": "hello"}]
PARAMETERS = {"type": "object", "properties": {"place": {"type": "string"}, "days": {"type": "integer"}}}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": PARAMETERS}}]
ARGUMENTS = {"place": "the world", "days": 12}
FORM: dict[str, Any] = {"type": "object", "properties": {"far": {"type": "boolean"}}, "required": ["far"]}
FORM["additionalProperties"] = False
SLOW = ("ernie", "minimax", "ministral", "seed")


@pytest.fixture(scope="module", params=[
    pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in FAMILIES
])  # fmt: skip
def chatting(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Live, Family]]:
    folder = family_folder(tmp_path_factory.mktemp("families") / "m", request.param)
    with Live(load(folder), name="m") as server:
        yield server, FAMILIES[request.param]


def length(live: Live, **fields: Any) -> int:
    count: int = live.post(f"{CHAT}/input_tokens", {"messages": ASK} | fields)["input_tokens"]
    return count


def test_every_api_tells_thinking_text_and_calls_apart(chatting: tuple[Live, Family]) -> None:
    live, family = chatting
    greedy = {"messages": ASK, "tools": TOOLS, "temperature": 0, "max_tokens": 400}
    flat = [{"type": "function", "name": "look", "parameters": PARAMETERS}]
    theirs = [{"name": "look", "input_schema": PARAMETERS}]
    with saying(live.service.engine.llm, family.answer, after=length(live, tools=TOOLS)):
        choice = live.post(CHAT, greedy | {"speculation": "off"})["choices"][0]
        drafted = live.post(CHAT, greedy | {"prediction": {"type": "content", "content": family.answer}})
        chunks = live.stream(CHAT, greedy | {"speculation": {"draft": "suffix", "spec_length": 8}})
        own = {"messages": ASK, "tools": theirs, "temperature": 0, "max_tokens": 400}
        anthropic = live.post("/v1/messages", own)["content"]
        asked = {"input": "hello", "tools": flat, "temperature": 0, "max_output_tokens": 400}
        response = live.post("/v1/responses", asked)["output"]
        ollama = live.post("/api/chat", {"model": "m", "stream": False, "options": {"temperature": 0}} | {
            "messages": ASK, "tools": TOOLS})["message"]  # fmt: skip
    message = choice["message"]
    assert (message["reasoning_content"], message["content"].rstrip("\n")) == ("hello", "world")
    (call,) = message["tool_calls"]
    assert (choice["finish_reason"], call["function"]["name"]) == ("tool_calls", "look")
    assert json.loads(call["function"]["arguments"]) == ARGUMENTS
    assert family.call_id is None or call["id"] == family.call_id
    assert _without_ids(drafted["choices"][0]["message"]) == _without_ids(message)
    assert drafted["metrics"]["speculative_decoding"]["num_accepted_draft_tokens"] > 8
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "hello"
    assert "".join(delta.get("content", "") for delta in deltas) == message["content"]
    assert [c["function"] for delta in deltas for c in delta.get("tool_calls", ())] == [call["function"]]
    assert [block["type"] for block in anthropic] == ["thinking", "text", "tool_use"]
    assert (anthropic[0]["thinking"], anthropic[2]["input"]) == ("hello", ARGUMENTS)
    assert [item["type"] for item in response] == ["reasoning", "message", "function_call"]
    assert json.loads(response[2]["arguments"]) == ARGUMENTS
    assert (ollama["thinking"], ollama["tool_calls"][0]["function"]["arguments"]) == ("hello", ARGUMENTS)


def _without_ids(message: dict[str, Any]) -> dict[str, Any]:
    return message | {"tool_calls": [call["function"] for call in message["tool_calls"]]}


def test_thinking_is_turned_off_as_the_template_takes_it(chatting: tuple[Live, Family]) -> None:
    live, family = chatting
    for variable, off in (("thinking_budget", {"thinking_budget": 0}), ("thinking is", {"thinking": False})):
        if variable in family.template:
            assert length(live, reasoning_effort="none") == length(live, chat_template_kwargs=off)
            return
    refused = live.client.post(CHAT, json={"messages": ASK, "reasoning_effort": "none"})
    assert refused.status_code == 400
    assert "always thinks" in refused.json()["error"]["message"]


def test_a_call_of_an_earlier_turn_is_in_the_prompt(chatting: tuple[Live, Family]) -> None:
    """These templates write contents alone, as LFM2's does: the call joins its message's."""
    live, family = chatting
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": json.dumps(ARGUMENTS)}}
    turn = {"role": "assistant", "content": "world", "tool_calls": [call]}
    body = {"messages": [*ASK, turn, {"role": "tool", "tool_call_id": "1", "content": "far"}], "tools": TOOLS}
    text = live.post("/apply-template", body)["prompt"]
    if "tool_call_start" in family.answer:
        assert "world<|tool_call_start|>[look(place='the world', days=12)]<|tool_call_end|>" in text
    else:
        assert '"arguments": {"place": "the world", "days": 12}' in text


def test_a_form_begins_behind_the_thinking(chatting: tuple[Live, Family]) -> None:
    live, family = chatting
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": FORM}}
    body = {"messages": ASK, "response_format": form, "temperature": 0, "max_tokens": 120}
    thought = family.answer[: family.answer.index("world")].removesuffix("<response>\n").rstrip("\n")
    with saying(live.service.engine.llm, thought + '{"far": true} hello', after=length(live)):
        plain = live.post(CHAT, body | {"speculation": "off"})
        drafted = live.post(CHAT, body | {"speculation": {"draft": "suffix", "spec_length": 8}})
    message = plain["choices"][0]["message"]
    assert message == drafted["choices"][0]["message"]
    assert message["reasoning_content"] == "hello"
    assert isinstance(json.loads(message["content"])["far"], bool)


def test_a_forced_call_follows_the_thinking(chatting: tuple[Live, Family]) -> None:
    live, family = chatting
    body = {"messages": ASK, "tools": TOOLS, "tool_choice": "required", "temperature": 0, "max_tokens": 200}
    thought = family.answer[: family.answer.index("world")].removesuffix("<response>\n").rstrip("\n")
    said = thought + '{"name": "look", "arguments": {"place": "the world", "days": 12}}'
    with saying(live.service.engine.llm, said, after=length(live, tools=TOOLS)):
        message = live.post(CHAT, body)["choices"][0]["message"]
    assert message["reasoning_content"] == "hello"
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == ARGUMENTS
