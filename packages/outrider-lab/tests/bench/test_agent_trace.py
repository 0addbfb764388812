"""``benchmarks.agent_trace``: all servers read the same prompts, whatever they answer; broken answers are named."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from benchmarks import agent_trace
from benchmarks.agent_trace import Turn, count_new, summary


class Server:
    """Answers as OpenAI's servers do, a token a word; some answers in a way of its own."""

    def __init__(self, text: str, broken: dict[int, httpx.Response]) -> None:
        """``broken``: answers in place of the ordinary one, by the number of the request."""
        self.text, self.broken = text, broken
        self.prompts: list[list[dict[str, Any]]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/health":
            return httpx.Response(200)
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "any"}]})
        if request.url.path == "/apply-template":
            return httpx.Response(404)
        body = json.loads(request.content)
        words = json.dumps(body["messages"]).split()
        if request.url.path == "/tokenize":
            return httpx.Response(200, json={"tokens": [hash(word) for word in words]})
        self.prompts.append(body["messages"])
        if len(self.prompts) in self.broken:
            return self.broken[len(self.prompts)]
        usage = {"prompt_tokens": len(words), "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 3}}
        return stream({"choices": [{"delta": {"content": self.text}}]}, {"choices": [], "usage": usage})


def stream(*events: dict[str, Any]) -> httpx.Response:
    return httpx.Response(200, text="".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n")


def run(server: Server, *options: str) -> list[Turn]:
    args = agent_trace.arguments(["http://any", "--turns", "6", "--system", "20", "--json", *options])

    async def trace() -> list[Turn]:
        async with httpx.AsyncClient(base_url="http://any", transport=httpx.MockTransport(server)) as client:
            return await agent_trace.trace(args, client)

    return asyncio.run(trace())


CUT = {"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"name": "open", "arguments": '{"pa'}}]}}]}


def by_agent(prompts: list[list[dict[str, Any]]]) -> list[str]:
    return sorted(json.dumps(prompt) for prompt in prompts)


def test_servers_read_the_same_prompts_whatever_they_answer() -> None:
    one, other = Server("yes", {}), Server("no", {3: httpx.Response(500, text="Failed to parse"), 5: stream(CUT)})
    whole, broken = run(one, "--tools"), run(other, "--tools")
    assert by_agent(one.prompts) == by_agent(other.prompts)
    assert [turn.new for turn in whole] == [turn.new for turn in broken]
    assert [turn.failed for turn in broken if turn.failed] == ["HTTP 500: Failed to parse"]
    assert (summary(whole)["failed"], summary(broken)["failed"]) == (0, 1)
    assert summary(broken)["read_unknown_turns"] == 2  # the cut answer has no usage either


def test_own_replies_go_into_the_prompts_but_broken_ones() -> None:
    error = stream({"choices": [{"delta": {"content": "half"}}]}, {"error": {"message": "Failed to parse"}})
    server = Server("yes", {3: error})
    turns = run(server, "--own-replies", "--agents", "1")
    said = [message["content"] for message in server.prompts[-1] if message["role"] == "assistant"]
    assert [turn.failed for turn in turns if turn.failed] == ["{'message': 'Failed to parse'}"]
    assert "half" not in said
    assert said.count("yes") == len(said) - 1


def test_conversations_are_edited_and_compacted_in_the_middle() -> None:
    server = Server("yes", {})
    turns = run(server, "--tools", "--seed", "7")
    assert [(turn.agent, turn.turn, turn.note) for turn in turns if turn.note] == [
        (0, 3, "edited"),
        (1, 3, "compacted"),
    ]
    for prompt in server.prompts[1:]:
        calls = [call["id"] for message in prompt for call in message.get("tool_calls", ())]
        assert calls == [message["tool_call_id"] for message in prompt if message["role"] == "tool"]
        assert prompt[-1]["role"] in ("user", "tool")


def test_new_tokens_are_those_that_no_ended_prompt_shares() -> None:
    prompts = [(0.0, 2.0, [1, 2, 3]), (1.0, 2.5, [1, 2, 3, 4]), (3.0, 4.0, [1, 2, 3, 4, 5]), (5.0, 6.0, [1, 2, 3])]
    assert count_new(prompts) == [3, 4, 1, 1]


@pytest.mark.parametrize(("read", "twice"), [(10, 0), (17, 7), (None, None)])
def test_what_is_read_beyond_the_new_is_read_twice(read: int | None, twice: int | None) -> None:
    turn = Turn(0, 1, first=0.5, whole=1.0, prompt=20, read=read, new=10, made=4)
    assert summary([turn])["read_twice"] == twice
    assert summary([turn])["first_token_p90_s"] == 0.5


def test_seeds_share_no_long_prefix() -> None:
    one, other = Server("yes", {}), Server("yes", {})
    run(one, "--seed", "1"), run(other, "--seed", "2")
    rules = [server.prompts[1][0]["content"].split() for server in (one, other)]
    assert agent_trace.common(*rules) < 8
