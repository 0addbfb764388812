"""What the APIs of Anthropic, Ollama and Responses have in common with OpenAI's: keys, limits, streams, errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from outrider.weights.hub.stores.settings import StoredSettings
from outrider_server.http.stream import JsonLines
from outrider_server.ollama.options import sampling
from outrider_server.ollama.schema import Options
from tests.server.conftest import load
from tests.server.live import Live, wait_until

MESSAGES = [{"role": "user", "content": "hello"}]
SAMPLING = {"seed": 3, "temperature": 0.8, "top_k": 40, "top_p": 0.9}
CHAT: dict[str, Any] = {"messages": MESSAGES, "max_tokens": 20} | SAMPLING
OPTIONS = {"num_predict": 20, "seed": 3}  # the other values are Ollama's defaults
BODIES: dict[str, dict[str, Any]] = {
    "/v1/messages": CHAT,
    "/v1/responses": {"input": MESSAGES, "max_output_tokens": 20} | SAMPLING,
    "/api/chat": {"model": "tiny", "messages": MESSAGES, "options": OPTIONS},
    "/api/generate": {"model": "tiny", "prompt": "hello", "options": OPTIONS},
}


def text_of(path: str, answer: dict[str, Any]) -> str:
    if path == "/v1/messages":
        return "".join(block["text"] for block in answer["content"])
    if path == "/v1/responses":
        return "".join(part["text"] for item in answer["output"] for part in item["content"])
    text: str = answer["message"]["content"] if path == "/api/chat" else answer["response"]
    return text


def events(live: Live, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Of a stream whose framing is checked."""
    answer = live.client.post(path, json=body | {"stream": True})
    assert answer.status_code == 200, answer.text
    if path.startswith("/api/"):
        assert answer.headers["content-type"] == "application/x-ndjson"
        assert answer.text.endswith("\n")
        return [json.loads(line) for line in answer.text.splitlines()]
    assert answer.headers["content-type"].startswith("text/event-stream")
    frames = [frame for frame in answer.text.split("\n\n") if frame and not frame.startswith(":")]
    named = [frame.partition("\n") for frame in frames]
    told = [json.loads(data.removeprefix("data: ")) for _, _, data in named]
    assert [name for name, _, _ in named] == [f"event: {event['type']}" for event in told]
    return told


def streamed_text(path: str, told: list[dict[str, Any]]) -> str:
    if path.startswith("/api/"):
        return "".join(text_of(path, line) for line in told)
    if path == "/v1/messages":
        return "".join(event["delta"].get("text", "") for event in told if event["type"] == "content_block_delta")
    return "".join(event["delta"] for event in told if event["type"] == "response.output_text.delta")


@pytest.mark.parametrize("path", BODIES)
def test_the_text_is_that_of_a_chat_whole_and_streamed(live: Live, path: str) -> None:
    chat = live.post("/v1/chat/completions", CHAT)["choices"][0]["message"]["content"]
    body = BODIES[path]
    assert text_of(path, live.post(path, body | {"stream": False})) == chat
    assert text_of(path, live.post(path, body | {"stream": False, "speculation": "off"})) == chat
    assert streamed_text(path, events(live, path, body)) == chat


def test_the_order_of_anthropics_events(live: Live) -> None:
    told = events(live, "/v1/messages", CHAT)
    kinds = [event["type"] for event in told]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert told[-2]["delta"]["stop_reason"] in ("end_turn", "max_tokens")
    assert told[-2]["usage"]["output_tokens"] == 20


def test_ollamas_defaults() -> None:
    given = {name: value for name, value in sampling(Options.model_validate({})).items() if value is not None}
    assert given == {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0.0}
    own = {"num_predict": 5, "seed": -1, "repeat_penalty": 1.2, "stop": ["x"], "top_p": 0.5}
    given = {name: value for name, value in sampling(Options.model_validate(own)).items() if value is not None}
    assert given["max_tokens"] == 5
    assert (given["repetition_penalty"], given["stop"], given["top_p"]) == (1.2, ["x"], 0.5)
    assert "seed" not in given


def test_a_stop_sequence_is_named(live: Live) -> None:
    text = live.post("/v1/messages", CHAT)["content"][0]["text"]
    answer = live.post("/v1/messages", CHAT | {"stop_sequences": ["zzz", text[4:6]]})
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", text[4:6])
    assert answer["content"][0]["text"] == text[: text.find(text[4:6])]


def test_an_assistants_last_message_is_continued(live: Live) -> None:
    opened = [*MESSAGES, {"role": "assistant", "content": "well, the"}]
    counts = [
        live.post("/v1/messages/count_tokens", {"messages": messages})["input_tokens"]
        for messages in (MESSAGES, opened)
    ]
    same = live.post("/tokenize", {"messages": opened, "continue_final_message": True})
    assert counts[1] == same["count"] != counts[0]


@pytest.mark.parametrize("path", BODIES)
def test_keys_and_what_they_do_not_share(folder: Path, path: str) -> None:
    with Live(load(folder), api_keys=("one", "other")) as server:
        body = BODIES[path] | {"stream": False}
        assert server.client.post(path, json=body).status_code == 401
        cached = []
        for key in ("one", "one", "other"):
            answer = server.client.post(path, json=body, headers={"x-api-key": key})
            assert answer.status_code == 200
            cached.append(answer.json()["timings"]["cache_n"])
        assert cached[0] == cached[2] == 0 < cached[1]


@pytest.mark.parametrize("path", BODIES)
def test_what_all_refuse(live: Live, path: str) -> None:
    for wrong in ({"whim": 1}, {"model": "gpt-9"}, {"speculation": {"draft": "eagle"}}):
        answer = live.client.post(path, json=BODIES[path] | wrong)
        assert answer.status_code in (400, 404)
        error = answer.json()["error"]
        message = error if isinstance(error, str) else error["message"]
        assert any(word in message for word in ("whim", "gpt-9", "eagle"))
        assert ("type" in answer.json()) == (path == "/v1/messages")
    assert live.client.post(path, content=b"{", headers={"Content-Type": "application/json"}).status_code == 400


@pytest.mark.parametrize("value", [0, 0.0, True, 1])
def test_what_may_only_be_false_is_not_zero_either(live: Live, value: object) -> None:
    path = "/v1/responses"
    assert live.client.post(path, json=BODIES[path] | {"background": False}).status_code == 200
    answer = live.client.post(path, json=BODIES[path] | {"background": value})
    assert answer.status_code == 400
    assert "background" in answer.json()["error"]["message"]


@pytest.mark.parametrize("path", BODIES)
def test_a_client_that_leaves_frees_its_place(live: Live, path: str) -> None:
    long = json.loads(json.dumps(BODIES[path] | {"stream": True}).replace(": 20", ": 900"))
    aborted = live.ended("abort")
    with live.client.stream("POST", path, json=long) as answer:
        next(answer.iter_raw())
    wait_until(live.idle)
    assert live.ended("abort") == aborted + 1


def test_only_programs_may_leave_out_what_a_body_is(live: Live) -> None:
    body = json.dumps(BODIES["/api/chat"] | {"stream": False}).encode()
    assert live.client.post("/api/chat", content=body).status_code == 200
    for header in ("Origin", "Sec-Fetch-Site"):
        assert live.client.post("/api/chat", content=body, headers={header: "null"}).status_code == 415
    assert live.client.post("/api/chat", content=body, headers={"Content-Type": "text/plain"}).status_code == 415
    assert live.client.post("/v1/messages", content=body).status_code == 415


def test_padded_lines_are_still_json(folder: Path) -> None:
    with Live(load(folder), stream_padding=256, stream_interval=0.05) as server:
        whole = server.post("/api/chat", BODIES["/api/chat"] | {"stream": False})
        with server.client.stream("POST", "/api/chat", json=BODIES["/api/chat"]) as answer:
            text = b"".join(answer.iter_raw())
        lines = [json.loads(line) for line in text.splitlines()]
        assert len(text) % 256 == 0
        assert "".join(line["message"]["content"] for line in lines) == whole["message"]["content"]


def test_line_breaks_beyond_ascii_end_no_line() -> None:
    data = JsonLines().event({"text": "a\u0085b\u2028c\u2029d"})
    assert len(data.decode().splitlines()) == 1
    assert json.loads(data) == {"text": "a\u0085b\u2028c\u2029d"}


def test_ollama_s_parameters_and_system_prompt_are_defaults_of_its_api(live: Live) -> None:
    service, asked = live.service, {"model": "tiny", "messages": MESSAGES, "stream": False, "options": {"seed": 5}}
    system = [{"role": "system", "content": "be brief"}]
    params = {"temperature": 0.3, "top_k": 5, "stop": ["zz"], "num_predict": 7, "num_ctx": 1 << 20, "mirostat": 2}
    told = {name: params[name] for name in ("temperature", "top_k", "stop", "num_predict")}
    given = live.post("/api/chat", asked | {"messages": system + MESSAGES, "options": told | {"seed": 5}})
    usual = live.post("/api/show", {"model": "tiny"})["parameters"]
    before, service.stored = service.stored, StoredSettings(params, "be brief")
    try:
        stored = live.post("/api/chat", asked)
        own = live.post("/api/chat", asked | {"messages": [*system, *MESSAGES], "options": {"num_predict": 3}})
        generated = live.post("/api/generate", {"model": "tiny", "prompt": "hello", "stream": False})
        raw = live.post("/api/generate", {"model": "tiny", "prompt": "hello", "stream": False, "raw": True})
        shown = live.post("/api/show", {"model": "tiny"})
    finally:
        service.stored = before
    assert stored["message"] == given["message"]
    assert stored["eval_count"] == given["eval_count"] == 7
    assert own["eval_count"] == 3
    assert generated["prompt_eval_count"] == stored["prompt_eval_count"] > raw["prompt_eval_count"]
    assert shown["system"] == "be brief"
    assert set(shown["parameters"].splitlines()) == {"temperature 0.3", "top_k 5", "top_p 0.9", "min_p 0.0"} | {
        "stop zz", "num_predict 7"
    }  # fmt: skip
    assert usual != shown["parameters"]
