"""The official ``openai`` client, as its users use it."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any, Literal

import openai
import pydantic
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


class Thing(pydantic.BaseModel):
    size: Literal["small", "large"]
    count: Annotated[int, pydantic.Field(ge=0, le=99)]


def test_structured_output_is_parsed_whole_and_streamed(client: openai.OpenAI) -> None:
    asked: Any = {"model": "tiny", "messages": MESSAGES, "max_tokens": 120, "seed": 3, "response_format": Thing}
    whole = client.chat.completions.parse(**asked)
    thing = whole.choices[0].message.parsed
    assert isinstance(thing, Thing)
    with client.chat.completions.stream(**asked) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert final.choices[0].message.parsed == thing
    assert "content.delta" in kinds
    other = client.chat.completions.parse(**asked | {"seed": 4}, extra_body={"speculation": "off"})
    drafted = client.chat.completions.parse(**asked | {"seed": 4}, extra_body={"speculation": {"draft": "ngram"}})
    assert other.choices[0].message.content == drafted.choices[0].message.content


def test_json_without_a_schema(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=60, seed=1, response_format={"type": "json_object"}
    )
    text = answer.choices[0].message.content or ""
    assert text.startswith("{")
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(text), dict)


def test_a_form_that_cannot_be_is_the_clients_error(client: openai.OpenAI) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "hiccup"}}}
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="tiny", messages=MESSAGES, response_format=form)
    assert refused.value.param == "response_format"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "look"}}])
def test_a_tool_that_must_be_called(client: openai.OpenAI, choice: Any) -> None:
    tool = openai.pydantic_function_tool(Thing, name="look")
    asked: Any = {"model": "tiny", "messages": MESSAGES, "tools": [tool], "tool_choice": choice, "seed": 2}
    whole = client.chat.completions.parse(**asked, max_tokens=200)
    call = (whole.choices[0].message.tool_calls or [])[0]
    assert whole.choices[0].finish_reason == "tool_calls"
    assert isinstance(call.function.parsed_arguments, Thing)
    with client.chat.completions.stream(**asked, max_tokens=200) as stream:
        streamed = (stream.get_final_completion().choices[0].message.tool_calls or [])[0]
    assert streamed.function.parsed_arguments == call.function.parsed_arguments


def test_a_called_tools_answer_goes_back(client: openai.OpenAI) -> None:
    tool = openai.pydantic_function_tool(Thing, name="look")
    asked: Any = {"model": "tiny", "tools": [tool], "max_tokens": 120, "seed": 2}
    first = client.chat.completions.create(**asked, messages=MESSAGES, tool_choice="required").choices[0].message
    call = (first.tool_calls or [])[0]
    reply: Any = {"role": "tool", "tool_call_id": call.id, "content": "small"}
    answered: Any = [*MESSAGES, first, reply]
    before = client.chat.completions.create(**asked | {"max_tokens": 1}, messages=MESSAGES)
    after = client.chat.completions.create(**asked | {"max_tokens": 1}, messages=answered)
    assert before.usage is not None
    assert after.usage is not None
    assert after.usage.prompt_tokens > before.usage.prompt_tokens + 10


def test_a_prediction_speeds_up_and_changes_nothing(client: openai.OpenAI, served: Live) -> None:
    asked: Any = {"model": "tiny", "messages": MESSAGES, "max_tokens": 60, "temperature": 0}
    length = client.chat.completions.create(**asked | {"max_tokens": 1}).usage.prompt_tokens
    text = "the world of hello and 12 of 34 hello world " * 3
    right: Any = {"type": "content", "content": text}
    wrong: Any = {"type": "content", "content": [{"type": "text", "text": text.replace("of", "and")}]}
    with saying(served.service.engine.llm, text, after=length):
        plain = client.chat.completions.create(**asked, extra_body={"speculation": "off"})
        good = client.chat.completions.create(**asked, prediction=right)
        bad = client.chat.completions.create(**asked, prediction=wrong)
        usage: Any = {"stream": True, "stream_options": {"include_usage": True}}
        last = list(client.chat.completions.create(**asked, prediction=right, **usage))[-1]
    texts = {answer.choices[0].message.content for answer in (plain, good, bad)}
    assert texts == {text}
    assert _prediction(good)[0] > 20
    assert _prediction(bad)[0] < _prediction(good)[0]
    assert _prediction(bad)[1] > _prediction(good)[1]
    assert _prediction(last) == _prediction(good)
    assert plain.usage is not None
    assert plain.usage.completion_tokens_details is None


def _prediction(answer: Any) -> tuple[int, int]:
    """(accepted, rejected) tokens of a prediction."""
    told = answer.usage.completion_tokens_details
    return told.accepted_prediction_tokens, told.rejected_prediction_tokens


def test_forms_tools_and_predictions_of_the_async_client(served: Live) -> None:
    async def ask() -> None:
        async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="sk-test", max_retries=0) as client:
            asked: Any = {"model": "tiny", "messages": MESSAGES, "max_tokens": 120, "seed": 3}
            parsed = await client.chat.completions.parse(**asked, response_format=Thing)
            assert isinstance(parsed.choices[0].message.parsed, Thing)
            async with client.chat.completions.stream(**asked, response_format=Thing) as stream:
                final = await stream.get_final_completion()
            assert final.choices[0].message.parsed == parsed.choices[0].message.parsed
            told = await client.chat.completions.create(**asked, prediction={"type": "content", "content": "hello"})
            assert sum(_prediction(told)) >= 1

    asyncio.run(ask())


def test_speculation_goes_in_the_extra_body(client: openai.OpenAI) -> None:
    asked: Any = {"model": "tiny", "prompt": "hello hello hello", "max_tokens": 30, "seed": 1}
    on = client.completions.create(**asked, extra_body={"speculation": {"draft": "lookup", "spec_length": 3}})
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
