"""``/v1/chat/completions``: messages, streams, tools, log-probabilities."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.model_folders import model_folder
from tests.server.conftest import load
from tests.server.live import Live
from tests.server.scripted import saying

PATH = "/v1/chat/completions"
ASK = [{"role": "user", "content": "hello"}]
PLAIN: dict[str, Any] = {"messages": ASK, "max_tokens": 10, "seed": 2, "ignore_eos": True}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
TEMPLATE = (
    "{% if tools %}{{ tools | tojson }} Answer with <tool_call>{}</tool_call>\n{% endif %}"
    "{% for m in messages %}<|user|>{{ m.role }}: {{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "{{ eos_token }}{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)


@pytest.fixture(scope="module")
def teller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server whose chat template knows tools."""
    folder = model_folder(tmp_path_factory.mktemp("tools") / "teller", max_position_embeddings=1024)
    _set_template(folder, TEMPLATE)
    with Live(load(folder), name="teller") as server:
        yield server


def _set_template(folder: Path, template: str) -> None:
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"chat_template": template}))


def test_an_answer(live: Live) -> None:
    answer = live.post(PATH, PLAIN)
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")
    choice = answer["choices"][0]
    assert choice["message"]["role"] == "assistant"
    assert choice["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 10
    again = live.post(PATH, PLAIN | {"max_tokens": None, "max_completion_tokens": 10, "speculation": "off"})
    assert again["choices"][0]["message"] == choice["message"]


def test_without_a_limit_it_may_fill_the_context(live: Live) -> None:
    ids = live.post("/tokenize", {"messages": ASK})["tokens"]
    body = {"messages": ASK, "seed": 1, "ignore_eos": True, "temperature": 0}
    answer = live.post(PATH, body)
    assert answer["usage"]["completion_tokens"] == 1024 - len(ids)
    assert answer["choices"][0]["finish_reason"] == "length"


def test_a_stream_begins_with_the_role_and_ends_with_the_reason(live: Live) -> None:
    whole = live.post(PATH, PLAIN | {"n": 2})
    chunks = live.stream(PATH, PLAIN | {"n": 2, "stream_options": {"include_usage": True}})
    for index in (0, 1):
        own = [c["choices"][0] for c in chunks if c["choices"] and c["choices"][0]["index"] == index]
        assert own[0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
        assert all("role" not in choice["delta"] for choice in own[1:])
        assert own[-1]["delta"] == {}
        assert [choice["finish_reason"] for choice in own] == [None] * (len(own) - 1) + ["length"]
        text = "".join(choice["delta"].get("content", "") for choice in own)
        assert text == whole["choices"][index]["message"]["content"]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 20
    assert chunks[-1]["metrics"]["speculative_decoding"]["num_spec_steps"] >= 0


def test_logprobs_are_the_same_whole_and_streamed(live: Live) -> None:
    body = PLAIN | {"logprobs": True, "top_logprobs": 3}
    whole = live.post(PATH, body)["choices"][0]["logprobs"]["content"]
    assert len(whole) == 10
    for token in whole:
        assert len(token["top_logprobs"]) == 3
        assert token["logprob"] <= token["top_logprobs"][0]["logprob"]
        assert bytes(token["bytes"]).decode(errors="replace") == token["token"]
    parts = [c["choices"][0]["logprobs"] for c in live.stream(PATH, body) if c["choices"]]
    assert [token for part in parts if part for token in part["content"]] == whole


def test_a_developer_is_the_system_where_the_template_knows_none(teller: Live) -> None:
    given = [{"role": "developer", "content": "be brief"}, *ASK]
    same = [{"role": "system", "content": "be brief"}, *ASK]
    assert teller.post("/tokenize", {"messages": given}) == teller.post("/tokenize", {"messages": same})


def test_text_parts_are_joined(teller: Live) -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    whole = [{"role": "user", "content": "a\nb"}]
    assert teller.post("/tokenize", {"messages": parts}) == teller.post("/tokenize", {"messages": whole})


def test_a_final_assistant_message_can_be_continued(teller: Live) -> None:
    messages = [*ASK, {"role": "assistant", "content": "well, the"}]
    ids = teller.post("/tokenize", {"messages": messages, "continue_final_message": True})["tokens"]
    assert teller.post("/detokenize", {"tokens": ids})["content"].endswith("assistant: well, the")


CALL = '<tool_call>{"name": "look", "arguments": {"where": "here"}}</tool_call>'
ANSWERS = {
    "a call": CALL,
    "words, then a call": f"let me look.\n{CALL}",
    "two calls": f"{CALL}\n{CALL}",
    "no call": "no tool is needed < here",
    "half a mark": "one <tool_ca",
    "not JSON": "<tool_call>{oh</tool_call> well",
    "not closed": '<tool_call>{"name": "look", "arguments": {}}',
}


@pytest.mark.parametrize("text", ANSWERS.values(), ids=ANSWERS)
def test_tool_calls_whole_and_streamed(teller: Live, text: str) -> None:
    llm = teller.service.engine.llm
    length = teller.post("/tokenize", {"messages": ASK, "tools": TOOLS})["count"]
    body = {"messages": ASK, "tools": TOOLS, "temperature": 0, "max_tokens": 200}
    with saying(llm, text, after=length):
        choice = teller.post(PATH, body)["choices"][0]
        deltas = [c["choices"][0]["delta"] for c in teller.stream(PATH, body)]
        plain = teller.post(PATH, body | {"tool_choice": "none", "tools": TOOLS}) if "call" not in text else None
    calls = choice["message"].get("tool_calls", [])
    expected = text.count('"name": "look"')
    assert [call["function"]["name"] for call in calls] == ["look"] * expected
    assert choice["finish_reason"] == ("tool_calls" if expected else "stop")
    streamed = [call for delta in deltas for call in delta.get("tool_calls", [])]
    assert [call["function"] for call in streamed] == [call["function"] for call in calls]
    assert [call["index"] for call in streamed] == list(range(expected))
    assert "".join(delta.get("content") or "" for delta in deltas) == (choice["message"]["content"] or "")
    assert plain is None or plain["choices"][0]["finish_reason"] in ("stop", "length")


def test_ollamas_calls_are_numbered_through(teller: Live) -> None:
    """Also where each comes in a step of its own."""
    length = teller.post("/tokenize", {"messages": ASK, "tools": TOOLS})["count"]
    body = {"model": "teller", "messages": ASK, "tools": TOOLS, "options": {"temperature": 0, "num_predict": 200}}
    with saying(teller.service.engine.llm, f"{CALL}\n{CALL}", after=length):
        lines = teller.client.post("/api/chat", json=body).text.splitlines()
        whole = teller.post("/api/chat", body | {"stream": False})
    streamed = [call for line in lines for call in json.loads(line)["message"].get("tool_calls", [])]
    for calls in (streamed, whole["message"]["tool_calls"]):
        assert [call["function"]["index"] for call in calls] == [0, 1]
        assert [call["function"]["arguments"] for call in calls] == [{"where": "here"}] * 2


def test_a_conversation_with_calls_and_results_comes_back(teller: Live) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"where": "there"}'}}
    messages = [
        *ASK,
        {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None},
        {"role": "tool", "tool_call_id": "c1", "content": "a river"},
    ]
    ids = teller.post("/tokenize", {"messages": messages, "tools": TOOLS})["tokens"]
    text = teller.post("/detokenize", {"tokens": ids})["content"]
    assert '{"name": "look", "arguments": {"where": "there"}}' in text
    assert "tool: a river" in text


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "max_tokens": st.integers(1, 20),
            "n": st.integers(1, 2),
            "temperature": st.sampled_from([0.0, 0.8]),
            "stop": st.sampled_from(["a", ["e", "o"]]),
            "presence_penalty": st.just(1.0),
            "ignore_eos": st.booleans(),
            "speculation": st.sampled_from(["off", {"draft": "lookup"}]),
            "logprobs": st.booleans(),
        },
    )
)
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_streamed_is_what_comes_whole(live: Live, options: dict[str, Any]) -> None:
    body = {"messages": ASK, "seed": 5, "max_tokens": 24} | options
    whole = live.post(PATH, body)["choices"]
    texts, reasons = [""] * len(whole), [None] * len(whole)
    for chunk in live.stream(PATH, body):
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["delta"].get("content", "")
            reasons[choice["index"]] = choice["finish_reason"]
    assert texts == [choice["message"]["content"] for choice in whole]
    assert reasons == [choice["finish_reason"] for choice in whole]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "look"}}])
def test_a_tool_call_can_be_forced(teller: Live, choice: Any) -> None:
    parameters: dict[str, Any] = {"type": "object", "properties": {"far": {"type": "boolean"}}, "required": ["far"]}
    parameters["additionalProperties"] = False
    tools = [{"type": "function", "function": {"name": "look", "parameters": parameters}}]
    body = {"messages": ASK, "tools": tools, "tool_choice": choice, "seed": 1, "max_tokens": 200}
    answer = teller.post(PATH, body)["choices"][0]
    call = answer["message"]["tool_calls"][0]["function"]
    assert answer["finish_reason"] == "tool_calls"
    assert call["name"] == "look"
    assert isinstance(json.loads(call["arguments"])["far"], bool)
    deltas = [c["choices"][0]["delta"] for c in teller.stream(PATH, body)]
    assert [call["function"] for delta in deltas for call in delta.get("tool_calls", [])] == [call]
