"""Hostile input, each with the answer it must get: a clear refusal, never a failure, and the next request served."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.server.live import Live

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
JSON = {"Content-Type": "application/json"}
DEEP = "[" * 100_000 + "]" * 100_000
IMAGE = {"type": "image_url", "image_url": {"url": "http://169.254.169.254/latest/meta-data"}}
AUDIO = {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}


SHAPE = {"message", "type", "param", "code"}
LEAKS = ("Traceback", "site-packages", "/src/", ".py")


def user(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


RAW: dict[str, tuple[bytes, int, str | None]] = {
    "nothing": (b"", 400, None),
    "cut off": (b'{"prompt": "x"', 400, None),
    "not JSON": (b"prompt=x", 400, None),
    "not UTF-8": (b'{"prompt": "\xff\xfe"}', 400, None),
    "UTF-16": ('{"prompt": "x"}'.encode("utf-16"), 400, None),
    "a null byte outside": (b'{"prompt": "x"}\x00', 400, None),
    "two documents": (b'{"prompt": "x"} {"prompt": "y"}', 400, None),
    "a list": (b'[{"prompt": "x"}]', 400, None),
    "a number": (b"1" * 5000, 400, None),
    "deep nesting": (DEEP.encode(), 413, None),
    "deep nesting in a field": (b'{"prompt": "x", "metadata": {"a": ' + DEEP.encode() + b"}}", 413, None),
    "NaN": (b'{"prompt": "x", "temperature": NaN}', 400, None),
    "Infinity": (b'{"prompt": "x", "temperature": Infinity}', 400, None),
    "1e309": (b'{"prompt": "x", "temperature": 1e309}', 400, "temperature"),
    "-1e309": (b'{"prompt": "x", "presence_penalty": -1e309}', 400, "presence_penalty"),
    "an integer of 5000 digits": (b'{"prompt": "x", "seed": ' + b"9" * 5000 + b"}", 400, None),
    "a lone surrogate": (b'{"prompt": "\\ud800"}', 400, None),
    "a lone low surrogate": (b'{"prompt": "x", "stop": "\\udfff"}', 400, None),
    "a hundred thousand fields": (json.dumps({f"f{i}": 1 for i in range(100_000)}).encode(), 413, None),
    "a thousand fields": (json.dumps({f"f{i}": 1 for i in range(1000)}).encode(), 400, "f0"),
    "a million numbers": (json.dumps({"prompt": [1] * 1_000_000}).encode(), 413, None),
    "many commas and quotes in a text": (json.dumps({"prompt": '",' * 400_000}).encode(), 400, "prompt"),
    "two million line breaks": (json.dumps({"prompt": "\n" * 2_000_000}).encode(), 413, None),
}


@pytest.mark.parametrize(("body", "status", "param"), RAW.values(), ids=RAW)
def test_bodies(live: Live, body: bytes, status: int, param: str | None) -> None:
    answer = live.client.post(COMPLETIONS, content=body, headers=JSON)
    assert told(answer) == (status, param)
    assert flaws(live, answer) == []


FIELDS: dict[str, tuple[dict[str, Any], int, str | None]] = {
    "no prompt": ({"prompt": None}, 400, "prompt"),
    "an empty prompt": ({"prompt": ""}, 400, "prompt"),
    "an empty list": ({"prompt": []}, 400, "prompt"),
    "a list of empty lists": ({"prompt": [[]]}, 400, "prompt[0]"),
    "several bad prompts": ({"prompt": [[1], [2, "x"], [True]]}, 400, "prompt[1][1]"),
    "an unknown field of a thousand characters": ({"x " * 500: 1}, 400, "x " * 30),
    "an object as prompt": ({"prompt": {"text": "x"}}, 400, "prompt"),
    "tokens out of range": ({"prompt": [1, 99999]}, 400, "prompt"),
    "negative tokens": ({"prompt": [-1]}, 400, "prompt[0]"),
    "huge tokens": ({"prompt": [2**64]}, 400, "prompt[0]"),
    "tokens as numbers with a point": ({"prompt": [1.0, 2.5]}, 400, "prompt[0]"),
    "booleans as tokens": ({"prompt": [True, False]}, 400, "prompt[0]"),
    "beyond the context": ({"prompt": "hello " * 5000}, 400, "prompt"),
    "a prompt of four hundred thousand characters": ({"prompt": "x" * 400_000}, 400, "prompt"),
    "too many prompts": ({"prompt": ["x"] * 65}, 400, "prompt"),
    "n of a billion": ({"n": 10**9}, 400, "n"),
    "n of zero": ({"n": 0}, 400, "n"),
    "n as text": ({"n": "2"}, 400, "n"),
    "n above the server's limit": ({"n": 100}, 400, "n"),
    "more sequences than places": ({"prompt": ["x"] * 60, "n": 16}, 400, None),
    "best_of above the server's limit": ({"best_of": 100}, 400, "best_of"),
    "best_of below n": ({"n": 4, "best_of": 2}, 400, "best_of"),
    "best_of streamed": ({"best_of": 2, "stream": True}, 400, "best_of"),
    "no tokens": ({"max_tokens": 0}, 400, "max_tokens"),
    "negative tokens to make": ({"max_tokens": -5}, 400, "max_tokens"),
    "more tokens than an integer holds": ({"max_tokens": 2**63}, 400, "max_tokens"),
    "a negative temperature": ({"temperature": -0.1}, 400, "temperature"),
    "top_p of zero": ({"top_p": 0}, 400, "top_p"),
    "a truth value for a number": ({"temperature": True}, 400, "temperature"),
    "seventeen stops": ({"stop": [str(i) for i in range(17)]}, 400, "stop"),
    "an empty stop": ({"stop": [""]}, 400, "stop"),
    "a stop of a megabyte": ({"stop": ["x" * (1 << 20)]}, 400, "stop[0]"),
    "21 logprobs": ({"logprobs": 21}, 400, "logprobs"),
    "a bias on no token": ({"logit_bias": {"x": 1}}, 400, "logit_bias"),
    "a bias on an unknown token": ({"logit_bias": {"99999": 1}}, 400, "logit_bias"),
    "a bias on a token with a sign": ({"logit_bias": {"-1": 1}}, 400, "logit_bias"),
    "a bias beyond measure": ({"logit_bias": {"1": 1e30}}, 400, "logit_bias"),
    "bias digits of another script": ({"logit_bias": {"\u0661": 1}}, 400, "logit_bias"),
    "nothing is allowed": ({"allowed_token_ids": []}, 400, "allowed_token_ids"),
    "an unknown field": ({"best_off": 1}, 400, "best_off"),
    "a field of Python's": ({"__class__": "x"}, 400, "__class__"),
    "a suffix": ({"suffix": "end"}, 400, "suffix"),
    "another model": ({"model": "../../etc/passwd"}, 404, "model"),
    "an unknown source": ({"speculation": {"draft": "telepathy"}}, 400, "speculation"),
    "an unknown method": ({"speculation": {"method": "telepathy"}}, 400, "speculation"),
    "two sources": ({"speculation": {"method": "ngram", "draft": "ngram"}}, 400, "speculation.draft"),
    "an unknown verifier": ({"speculation": {"verifier": "hope"}}, 400, "speculation.verifier"),
    "a draft of no length": ({"speculation": {"spec_length": 0}}, 400, "speculation.spec_length"),
    "a draft of a billion": ({"speculation": {"spec_length": 10**9}}, 400, "speculation.spec_length"),
    "an unknown word for off": ({"speculation": "never"}, 400, "speculation"),
    "a regex bomb": ({"structured_outputs": {"regex": "(a+)+$" * 1000}}, 400, "structured_outputs"),
    "a schema bomb": (
        {"response_format": {"type": "json_schema", "json_schema": {"$ref": "#"}}},
        400,
        "response_format.json_schema",
    ),
    "stream options without a stream": ({"stream_options": {"include_usage": True}}, 400, "stream_options"),
    "only a stop, and not yet": ({"allowed_token_ids": [5], "stop_token_ids": [5], "min_tokens": 2}, 400, "min_tokens"),
    "only the end, and not yet": ({"allowed_token_ids": [1], "min_tokens": 2}, 400, "min_tokens"),
    "a form of other tokens than are allowed": (
        {"allowed_token_ids": [5], "structured_outputs": {"regex": "[a-z]{9}"}},
        400,
        None,
    ),
    "a draft of a thousand": ({"speculation": {"draft": "ngram", "spec_length": 1000}}, 400, "speculation"),
    "a wide draft": ({"speculation": {"draft": "ngram", "tree_nodes": 9, "tree": "9,9,9"}}, 400, "speculation"),
    "a prediction beyond the context": (
        {"prediction": {"type": "content", "content": "x" * 100_000}},
        400,
        "prediction",
    ),
    "a stop of megabytes": ({"stop": "x" * (7 << 20)}, 400, "stop"),
    "a name of megabytes in a bias": ({"logit_bias": {"9" * (2 << 20): 1}}, 400, "logit_bias"),
    "a salt of a megabyte": ({"cache_salt": "x" * (1 << 20)}, 400, "cache_salt"),
}


@pytest.mark.parametrize(("changes", "status", "param"), FIELDS.values(), ids=FIELDS)
def test_fields(live: Live, changes: dict[str, Any], status: int, param: str | None) -> None:
    answer = live.client.post(COMPLETIONS, json={"prompt": "hello", "max_tokens": 2} | changes)
    assert told(answer) == (status, param)
    assert flaws(live, answer) == []


CHATS: dict[str, tuple[dict[str, Any], int, str | None]] = {
    "no messages": ({"messages": []}, 400, "messages"),
    "an unknown role": ({"messages": [{"role": "root", "content": "x"}]}, 400, "messages[0].role"),
    "no content": ({"messages": [{"role": "user"}]}, 400, "messages[0].content"),
    "an image at an internal address": ({"messages": user([IMAGE])}, 400, "messages[0].content[0]"),
    "sound": ({"messages": user([AUDIO])}, 400, "messages[0].content[0]"),
    "a template of one's own": ({"chat_template": "{{ 1 }}"}, 400, "chat_template"),
    "messages through the back door": (
        {"chat_template_kwargs": {"messages": []}},
        400,
        "chat_template_kwargs.messages",
    ),
    "a tool with a bad name": (
        {"tools": [{"type": "function", "function": {"name": "rm -rf /"}}]},
        400,
        "tools[0].function.name",
    ),
    "a choice of no tool": ({"tool_choice": "auto"}, 400, "tool_choice"),
    "top_logprobs without logprobs": ({"top_logprobs": 2}, 400, "top_logprobs"),
    "two limits": ({"max_tokens": 3, "max_completion_tokens": 4}, 400, "max_tokens"),
    "several bad messages": (
        {
            "messages": [
                {"role": "user", "content": "x"},
                {"role": "root", "content": "x"},
                *user([{"type": "text", "text": 1}]),
            ]
        },
        400,
        "messages[1].role",
    ),
    "several bad parts": (
        {"messages": user([{"type": "text", "text": 1}, {"type": "text", "text": 2, "x": 1}])},
        400,
        "messages[0].content[0].text",
    ),
    "functions of old": ({"functions": []}, 400, "functions"),
}


@pytest.mark.parametrize(("changes", "status", "param"), CHATS.values(), ids=CHATS)
def test_chats(live: Live, changes: dict[str, Any], status: int, param: str | None) -> None:
    answer = live.client.post(CHAT, json={"messages": user("hello"), "max_tokens": 2} | changes)
    assert told(answer) == (status, param)
    assert flaws(live, answer) == []


@pytest.mark.parametrize("text", ["{{ 7 * 7 }}", "{% for x in range(9) %}x{% endfor %}", "{{ ''.__class__ }}"])
def test_templates_in_messages_are_text(live: Live, text: str) -> None:
    ids = live.post("/tokenize", {"messages": user(text)})["tokens"]
    assert text in live.post("/detokenize", {"tokens": ids})["content"]


PATHS: dict[str, tuple[str, str, int, str | None]] = {
    "up and out": ("GET", "/playground/../../../etc/passwd", 404, None),
    "up and out, escaped": ("GET", "/playground/%2e%2e/%2e%2e/etc/passwd", 404, None),
    "a null byte": ("GET", "/%00", 404, None),
    "a double slash": ("POST", "/v1//completions", 404, None),
    "a model's file": ("GET", "/v1/models/..%2f..%2fconfig.json", 404, "model"),
    "another method": ("DELETE", "/v1/completions", 405, None),
    "no method at all": ("FROB", "/v1/completions", 405, None),
    "documents of the framework": ("GET", "/docs", 404, None),
}


@pytest.mark.parametrize(("method", "path", "status", "param"), PATHS.values(), ids=PATHS)
def test_paths(live: Live, method: str, path: str, status: int, param: str | None) -> None:
    answer = live.client.request(method, path)
    assert told(answer) == (status, param)
    assert flaws(live, answer) == []


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_other_content_is_refused(live: Live, kind: str) -> None:
    """Forms of other sites can send these without asking; JSON they cannot."""
    answer = live.client.post(COMPLETIONS, content=b'{"prompt": "x"}', headers={"Content-Type": kind})
    assert told(answer) == (415, None)
    assert flaws(live, answer) == []


TOKENS: dict[str, tuple[str, dict[str, Any], str]] = {
    "no text": ("/tokenize", {}, "prompt"),
    "two texts": ("/tokenize", {"prompt": "a", "content": "b"}, "prompt"),
    "a text of megabytes": ("/tokenize", {"content": "a" * (1 << 21)}, "content"),
    "ids out of range": ("/detokenize", {"tokens": [10**6]}, "tokens"),
    "negative ids": ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
    "no ids": ("/detokenize", {}, "tokens"),
}


@pytest.mark.parametrize(("path", "body", "param"), TOKENS.values(), ids=TOKENS)
def test_tokens(live: Live, path: str, body: dict[str, Any], param: str) -> None:
    answer = live.client.post(path, json=body)
    assert told(answer) == (400, param)
    assert flaws(live, answer) == []


def told(answer: Any) -> tuple[int, str | None]:
    """The status and the field that an error names."""
    return answer.status_code, answer.json()["error"]["param"]


def flaws(live: Live, answer: Any) -> list[str]:
    """What is wrong with an error beside its status: its shape, what it tells of us, what it does to the next request.

    An empty list is how it should be.
    """
    error = answer.json().get("error", {})
    after = live.client.post(COMPLETIONS, json={"prompt": "hello", "max_tokens": 1})
    checks = {
        "it is not JSON": answer.headers["content-type"] == "application/json",
        "it is not in OpenAI's shape": set(answer.json()) == {"error"} and set(error) == SHAPE,
        "it is not the client's error": error.get("type") == "invalid_request_error",
        "it is as long as what it refuses": len(answer.content) < 300,
        "it tells where it was written": not any(leak in answer.text for leak in LEAKS),
        "the next request fails": after.status_code == 200 and len(after.json()["choices"]) == 1,
        "something still runs": live.idle(),
    }
    return [words for words, fine in checks.items() if not fine]
