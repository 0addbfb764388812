"""The official ``openai`` client, as its users use it."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest

from tests.server.live import Live, wait_until
from tests.server.scripted import saying

MESSAGES: Any = [{"role": "user", "content": "hello"}]
TOOLS: Any = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]


@pytest.fixture
def client(served: Live) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key="sk-test", max_retries=0)


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "outrider"


def test_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="tiny", prompt=["hello", "world"], max_tokens=5, n=2, seed=1, logprobs=2, echo=True, user="someone"
    )
    assert len(answer.choices) == 4
    assert answer.choices[0].text.startswith("hello")
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.token_logprobs is not None
    assert answer.usage is not None
    assert answer.system_fingerprint is not None


def test_streamed_completions(client: openai.OpenAI) -> None:
    asked: Any = {"model": "tiny", "prompt": "hello", "max_tokens": 12, "seed": 1}
    whole = client.completions.create(**asked)
    parts = list(client.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.text for part in parts for c in part.choices) == whole.choices[0].text
    assert parts[-1].usage == whole.usage


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_completion_tokens=6, seed=1, logprobs=True, top_logprobs=2, store=False
    )
    again = client.chat.completions.create(model="tiny", messages=MESSAGES, max_completion_tokens=6, seed=1)
    assert answer.choices[0].message.content == again.choices[0].message.content
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].logprobs is not None
    assert len(answer.choices[0].logprobs.content or []) == answer.usage.completion_tokens  # type: ignore[union-attr]
    follow: Any = [*MESSAGES, answer.choices[0].message, {"role": "user", "content": "and?"}]
    assert client.chat.completions.create(model="tiny", messages=follow, max_tokens=3).choices


def test_streamed_chat(client: openai.OpenAI) -> None:
    asked: Any = {"model": "tiny", "messages": MESSAGES, "max_tokens": 10, "seed": 4}
    whole = client.chat.completions.create(**asked)
    with client.chat.completions.stream(**asked) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == whole.choices[0].message.content
    assert final.choices[0].finish_reason == whole.choices[0].finish_reason


def test_tools(client: openai.OpenAI, served: Live) -> None:
    ids = served.client.post(
        "/tokenize", json={"messages": MESSAGES, "tools": TOOLS}, headers={"Authorization": "Bearer sk-test"}
    ).json()
    asked: Any = {"model": "tiny", "messages": MESSAGES, "tools": TOOLS, "temperature": 0, "max_tokens": 99}
    text = '<tool_call>{"name": "look", "arguments": {"far": true}}</tool_call>'
    with saying(served.service.engine.llm, text, after=ids["count"]):
        whole = client.chat.completions.create(**asked)
        with client.chat.completions.stream(**asked) as stream:
            final = stream.get_final_completion()
    for answer in (whole, final):
        assert answer.choices[0].finish_reason == "tool_calls"
        call: Any = (answer.choices[0].message.tool_calls or [])[0]
        assert call.function.name == "look"
        assert call.function.arguments == '{"far": true}'


def test_speculation_goes_in_the_extra_body(client: openai.OpenAI) -> None:
    asked: Any = {"model": "tiny", "prompt": "hello hello hello", "max_tokens": 30, "seed": 1}
    on = client.completions.create(**asked, extra_body={"speculation": {"method": "lookup", "spec_length": 3}})
    off = client.completions.create(**asked, extra_body={"speculation": "off"})
    assert on.choices[0].text == off.choices[0].text
    told: Any = off.model_extra
    assert told["metrics"]["speculative_decoding"]["num_draft_tokens"] == 0


def test_errors_are_the_ones_it_knows(client: openai.OpenAI, served: Live) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model="tiny", prompt="x", temperature=-1)
    assert refused.value.param == "temperature"
    with pytest.raises(openai.NotFoundError) as missing:
        client.completions.create(model="gpt-4", prompt="x")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{served.url}/v1", api_key="wrong", max_retries=0).models.list()


def test_many_tasks_at_once_and_cancellation(served: Live) -> None:
    async def serve() -> None:
        async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="sk-test", max_retries=0) as client:
            asked: Any = {"model": "tiny", "prompt": "hello", "max_tokens": 20}
            alone = [(await client.completions.create(**asked, seed=i)).choices[0].text for i in range(8)]
            together = await asyncio.gather(*(client.completions.create(**asked, seed=i) for i in range(8)))
            assert [answer.choices[0].text for answer in together] == alone
            endless: Any = asked | {"max_tokens": 900, "extra_body": {"ignore_eos": True}}
            stream = await client.completions.create(**endless, stream=True)
            async for _ in stream:
                break
            await stream.close()

    asyncio.run(serve())
    wait_until(served.idle)
