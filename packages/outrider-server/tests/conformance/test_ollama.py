"""The official ``ollama`` client, as its users use it. It is an extra: ``pip install outrider[conformance]``."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.server.live import Live, wait_until
from tests.server.scripted import saying

ollama = pytest.importorskip("ollama", reason="install outrider[conformance]")

MESSAGES = [{"role": "user", "content": "hello"}]
HEADERS = {"Authorization": "Bearer sk-test"}


@pytest.fixture
def client(served: Live) -> Any:
    return ollama.Client(host=served.url, headers=HEADERS)


def test_chat_whole_and_streamed(client: Any) -> None:
    asked: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "options": {"num_predict": 12, "seed": 1}}
    whole = client.chat(**asked)
    parts = list(client.chat(**asked, stream=True))
    assert "".join(part.message.content for part in parts) == whole.message.content
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    for end in (whole, parts[-1]):
        assert end.done_reason in ("stop", "length")
        assert end.eval_count <= 12
        assert end.total_duration >= end.eval_duration > 0


def test_generate_json_and_raw(client: Any) -> None:
    options = {"num_predict": 60, "seed": 3}
    schema: dict[str, Any] = {"type": "object", "properties": {"far": {"type": "boolean"}}, "required": ["far"]}
    schema["additionalProperties"] = False
    answer = client.generate(model="tiny", prompt="hello", options=options, format=schema)
    assert isinstance(json.loads(answer.response)["far"], bool)
    assert client.generate(model="tiny", prompt="hello", options=options, format="json").response.startswith("{")
    raw = client.generate(model="tiny", prompt="hello", options=options, raw=True)
    asked = client.generate(model="tiny", prompt="hello", options=options)
    assert raw.prompt_eval_count < asked.prompt_eval_count
    assert client.generate(model="tiny").done_reason == "load"


def test_tools(client: Any, served: Live) -> None:
    def look(where: str) -> str:
        """Look somewhere."""
        return where

    asked: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "tools": [look]}
    count = client.chat(**asked, options={"num_predict": 1}).prompt_eval_count
    text = '<tool_call>{"name": "look", "arguments": {"where": "up"}}</tool_call>'
    with saying(served.service.engine.llm, text, after=count):
        answer = client.chat(**asked, options={"temperature": 0})
    call = answer.message.tool_calls[0].function
    assert (call.name, dict(call.arguments)) == ("look", {"where": "up"})
    follow = [*MESSAGES, answer.message, {"role": "tool", "tool_name": "look", "content": "a hill"}]
    before = client.chat(model="tiny", messages=MESSAGES, options={"num_predict": 2})
    again = client.chat(model="tiny", messages=follow, options={"num_predict": 2})
    assert again.prompt_eval_count > before.prompt_eval_count + 20


def test_what_it_lists(client: Any) -> None:
    assert [model.model for model in client.list().models] == ["tiny"]
    assert client.ps().models[0].context_length == 1024
    shown = client.show("tiny:latest")
    assert {"completion", "tools"} <= set(shown.capabilities)
    assert shown.modelinfo["llama.context_length"] == 1024


def test_errors_are_the_ones_it_knows(client: Any, served: Live) -> None:
    for options in ({"mirostat": 2}, {"repeat_penalty": 1.1, "repeat_last_n": 64}, {"num_ctx": 4096}, {"whim": 1}):
        with pytest.raises(ollama.ResponseError, match=next(reversed(options))) as refused:
            client.chat(model="tiny", messages=MESSAGES, options=options)
        assert refused.value.status_code == 400
    with pytest.raises(ollama.ResponseError) as missing:
        client.chat(model="llama9", messages=MESSAGES)
    assert missing.value.status_code == 404
    with pytest.raises(ollama.ResponseError):
        ollama.Client(host=served.url).list()


def test_the_async_client_can_leave_a_stream(served: Live) -> None:
    async def leave() -> None:
        client = ollama.AsyncClient(host=served.url, headers=HEADERS)
        stream = await client.chat(model="tiny", messages=MESSAGES, stream=True, options={"num_predict": 900})
        async for _ in stream:
            break
        await stream.aclose()
        await client.close()

    aborted = served.ended("abort")
    asyncio.run(leave())
    wait_until(served.idle)
    assert served.ended("abort") == aborted + 1
