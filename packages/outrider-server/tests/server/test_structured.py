"""``response_format``, ``structured_outputs`` and forced tool calls."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.server.live import Live

PATH, CHAT = "/v1/completions", "/v1/chat/completions"
ASK: dict[str, Any] = {"prompt": "hello", "max_tokens": 120, "seed": 3}
SCHEMA = {
    "type": "object",
    "properties": {"size": {"enum": ["small", "large"]}, "count": {"type": "integer", "maximum": 99, "minimum": 0}},
    "required": ["size", "count"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("speculation", ["off", {"draft": "ngram"}])
def test_a_schema_is_kept_whole_and_streamed(live: Live, speculation: Any) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "thing", "schema": SCHEMA, "strict": True}}
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 120, "seed": 3, "speculation": speculation}
    choice = live.post(CHAT, body | {"response_format": form})["choices"][0]
    made = json.loads(choice["message"]["content"])
    assert choice["finish_reason"] == "stop"
    assert made["size"] in ("small", "large")
    assert 0 <= made["count"] <= 99
    chunks = live.stream(CHAT, body | {"response_format": form})
    text = "".join(c["delta"].get("content", "") for chunk in chunks for c in chunk["choices"])
    assert text == choice["message"]["content"]


def test_drafts_change_nothing(live: Live) -> None:
    body = ASK | {"structured_outputs": {"regex": "[a-z]{3}( [a-z]{3}){5}"}}
    drafted = live.post(PATH, body)["choices"][0]["text"]
    assert re.fullmatch("[a-z]{3}( [a-z]{3}){5}", drafted)
    assert live.post(PATH, body | {"speculation": "off"})["choices"][0]["text"] == drafted


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ({"choice": ["yes", "no"]}, "yes|no"),
        ({"regex": "[0-9]{4}"}, "[0-9]{4}"),
        ({"grammar": 'root ::= "a" "b" "c"'}, "abc"),
        ({"json": {"const": 7}}, "7"),
    ],
)
def test_forms_of_vllm(live: Live, form: dict[str, Any], expected: str) -> None:
    assert re.fullmatch(expected, live.post(PATH, ASK | {"structured_outputs": form})["choices"][0]["text"])


@pytest.mark.parametrize(
    ("form", "expected"), [({"grammar": 'root ::= "a"{5,5}'}, "a{5}"), ({"json_schema": {"const": "42"}}, '"42"')]
)
def test_forms_of_llama_cpp(live: Live, form: dict[str, Any], expected: str) -> None:
    assert re.fullmatch(expected, live.post(PATH, ASK | form)["choices"][0]["text"])


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": 5}}}, "response_format"),
        ({"response_format": {"type": "json_object", "schema": {"type": "hiccup"}}}, "response_format"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"shape": "round"}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs"),
        ({"structured_outputs": {"grammar": "root ::= nowhere"}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}}, "structured_outputs"),
        ({"grammar": "root ::= nowhere"}, "grammar"),
        ({"grammar": 'root ::= "a"', "json_schema": {"type": "object"}}, "json_schema"),
        ({"json_schema": {"type": "nonsense"}}, "json_schema"),
    ],
)
def test_forms_that_cannot_be(live: Live, changes: dict[str, Any], param: str) -> None:
    answer = live.client.post(PATH, json=ASK | changes)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
