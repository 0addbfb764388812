"""``langchain-openai`` against the server. It is an extra: ``pip install outrider[conformance]``."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.server.live import Live
from tests.server.scripted import saying

langchain = pytest.importorskip("langchain_openai", reason="install outrider[conformance]")


@pytest.fixture
def chat(served: Live) -> Any:
    return langchain.ChatOpenAI(
        base_url=f"{served.url}/v1", api_key="sk-test", model="tiny", temperature=0.5, max_tokens=8, seed=1
    )


def test_invoke_stream_batch_and_async(chat: Any) -> None:
    whole = chat.invoke([("system", "be brief"), ("human", "hello")])
    assert whole.response_metadata["finish_reason"] in ("stop", "length")
    assert whole.usage_metadata["output_tokens"] == 8
    parts = list(chat.stream([("system", "be brief"), ("human", "hello")]))
    assert "".join(part.content for part in parts) == whole.content
    assert [m.content for m in chat.batch(["hello", "hello"])] == [chat.invoke("hello").content] * 2
    assert asyncio.run(chat.ainvoke("hello")).content == chat.invoke("hello").content


def test_tools(chat: Any, served: Live) -> None:
    def look(where: str) -> str:
        """Look somewhere."""
        return where

    bound = chat.bind_tools([look]).bind(max_tokens=99, temperature=0)
    length = bound.invoke("hello").usage_metadata["input_tokens"]
    text = '<tool_call>{"name": "look", "arguments": {"where": "up"}}</tool_call>'
    with saying(served.service.engine.llm, text, after=length):
        answer = bound.invoke("hello")
    assert [(call["name"], call["args"]) for call in answer.tool_calls] == [("look", {"where": "up"})]


def test_completions(served: Live) -> None:
    llm = langchain.OpenAI(base_url=f"{served.url}/v1", api_key="sk-test", model="tiny", max_tokens=6, seed=1)
    assert llm.invoke("hello") == "".join(llm.stream("hello"))
