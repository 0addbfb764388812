"""The official ``anthropic`` client, as its users use it. It is an extra: ``pip install outrider[conformance]``."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.server.live import Live, wait_until
from tests.server.scripted import saying

anthropic = pytest.importorskip("anthropic", reason="install outrider[conformance]")

ASK: dict[str, Any] = {"model": "tiny", "max_tokens": 12, "messages": [{"role": "user", "content": "hello"}]}
LOOK: dict[str, Any] = {"name": "look", "input_schema": {"type": "object", "properties": {"far": {"type": "boolean"}}}}
CALL = '<tool_call>{"name": "look", "arguments": {"far": true}}</tool_call>'


@pytest.fixture
def client(served: Live) -> Any:
    return anthropic.Anthropic(base_url=served.url, api_key="sk-test", max_retries=0)


def test_a_message_whole_and_streamed(client: Any) -> None:
    asked = ASK | {"system": "be brief", "extra_body": {"seed": 1, "temperature": 0.5}}
    whole = client.messages.create(**asked)
    assert (whole.type, whole.role, whole.content[0].type) == ("message", "assistant", "text")
    assert whole.stop_reason in ("end_turn", "max_tokens")
    with client.messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens == 12
    assert whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0) > 0


def test_tools(client: Any, served: Live) -> None:
    asked = ASK | {"tools": [LOOK], "max_tokens": 99, "extra_body": {"temperature": 0}}
    count = client.messages.count_tokens(**{name: asked[name] for name in ("model", "messages", "tools")}).input_tokens
    with saying(served.service.engine.llm, f"let me see.\n{CALL}", after=count):
        whole = client.messages.create(**asked)
        with client.messages.stream(**asked) as stream:
            final = stream.get_final_message()
    for answer in (whole, final):
        assert answer.stop_reason == "tool_use"
        assert [block.type for block in answer.content] == ["text", "tool_use"]
        assert (answer.content[1].name, answer.content[1].input) == ("look", {"far": True})
    result = {
        "type": "tool_result",
        "tool_use_id": whole.content[1].id,
        "content": [{"type": "text", "text": "a hill"}],
    }
    follow = [*ASK["messages"], {"role": "assistant", "content": whole.content}, {"role": "user", "content": [result]}]
    assert client.messages.create(**asked | {"messages": follow, "max_tokens": 3}).usage.output_tokens <= 3


def test_a_tool_that_must_be_called(client: Any) -> None:
    tool = {"name": "look", "input_schema": LOOK["input_schema"] | {"required": ["far"], "additionalProperties": False}}
    choice = {"type": "tool", "name": "look"}
    answer = client.messages.create(
        **ASK | {"tools": [tool], "tool_choice": choice, "max_tokens": 200, "extra_body": {"seed": 2}}
    )
    assert isinstance(answer.content[0].input["far"], bool)


def test_errors_are_the_ones_it_knows(client: Any, served: Live) -> None:
    with pytest.raises(anthropic.BadRequestError, match="temperature"):
        client.messages.create(**ASK | {"extra_body": {"temperature": 3}})
    with pytest.raises(anthropic.NotFoundError) as missing:
        client.messages.create(**ASK | {"model": "claude-3"})
    assert missing.value.body["error"]["type"] == "not_found_error"
    with pytest.raises(anthropic.AuthenticationError) as stranger:
        anthropic.Anthropic(base_url=served.url, api_key="wrong", max_retries=0).messages.create(**ASK)
    assert stranger.value.body["type"] == "error"
    assert [model.id for model in client.models.list()] == ["tiny"]


def test_the_async_client_can_leave_a_stream(served: Live) -> None:
    async def leave() -> None:
        client = anthropic.AsyncAnthropic(base_url=served.url, api_key="sk-test", max_retries=0)
        async with client, client.messages.stream(**ASK | {"max_tokens": 900}) as stream:
            async for _ in stream:
                break

    aborted = served.ended("abort")
    asyncio.run(leave())
    wait_until(served.idle)
    assert served.ended("abort") == aborted + 1
