"""The Responses API, by the official ``openai`` client."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from tests.conformance.test_openai import Thing
from tests.server.live import Live
from tests.server.scripted import saying

ASK: dict[str, Any] = {"model": "tiny", "input": "hello", "max_output_tokens": 12, "extra_body": {"seed": 1}}
LOOK: dict[str, Any] = {"type": "function", "name": "look", "strict": False}
LOOK["parameters"] = {"type": "object", "properties": {"far": {"type": "boolean"}}}
CALL = '<tool_call>{"name": "look", "arguments": {"far": true}}</tool_call>'


@pytest.fixture
def client(served: Live) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key="sk-test", max_retries=0)


def test_a_response_whole_and_streamed(client: openai.OpenAI) -> None:
    whole = client.responses.create(**ASK, instructions="be brief", temperature=0.5)
    assert whole.status in ("completed", "incomplete")
    assert whole.output[0].type == "message"
    events: list[Any] = list(client.responses.create(**ASK, instructions="be brief", temperature=0.5, stream=True))
    final = events[-1].response
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == f"response.{whole.status}"
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == whole.output_text == final.output_text
    assert final.usage.total_tokens == whole.usage.total_tokens
    items: Any = [{"role": "user", "content": [{"type": "input_text", "text": "hello"}]}]
    same = client.responses.create(**ASK | {"input": items}, instructions="be brief", temperature=0.5)
    assert same.output_text == whole.output_text


def test_a_form(client: openai.OpenAI) -> None:
    asked = ASK | {"max_output_tokens": 120, "extra_body": {"seed": 3}}
    assert isinstance(client.responses.parse(**asked, text_format=Thing).output_parsed, Thing)


def test_tools_and_their_results(client: openai.OpenAI, served: Live) -> None:
    asked = ASK | {"tools": [LOOK], "max_output_tokens": 99, "temperature": 0}
    count = client.responses.create(**asked | {"max_output_tokens": 1}).usage.input_tokens
    with saying(served.service.engine.llm, f"let me see.\n{CALL}", after=count):
        whole = client.responses.create(**asked)
        with client.responses.stream(**asked) as stream:
            final = stream.get_final_response()
    for answer in (whole, final):
        assert [item.type for item in answer.output] == ["message", "function_call"]
        call: Any = answer.output[1]
        assert (call.name, json.loads(call.arguments)) == ("look", {"far": True})
    call = whole.output[1]
    given: Any = [{"role": "user", "content": "hello"}, *[item.model_dump(exclude_none=True) for item in whole.output]]
    given.append({"type": "function_call_output", "call_id": call.call_id, "output": "a hill"})
    again = client.responses.create(**asked | {"input": given, "max_output_tokens": 2})
    assert again.usage is not None
    assert again.usage.input_tokens > count + 20


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("previous_response_id", "resp-1"),
        ("store", True),
        ("background", True),
        ("truncation", "auto"),
        ("tools", [{"type": "web_search"}]),
        ("reasoning", {"effort": "high"}),
        ("top_logprobs", 2),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(client: openai.OpenAI, name: str, value: Any) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(**ASK | {name: value})
    assert name in str(refused.value) or "reasoning" in str(refused.value)


def test_logprobs(client: openai.OpenAI) -> None:
    asked = ASK | {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    answer: Any = client.responses.create(**asked)
    logprobs = answer.output[0].content[0].logprobs
    assert len(logprobs) == answer.usage.output_tokens
    final: Any = list(client.responses.create(**asked, stream=True))[-1]
    assert [token.logprob for token in final.response.output[0].content[0].logprobs] == [
        token.logprob for token in logprobs
    ]
