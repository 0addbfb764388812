"""Texts of a body that are JSON themselves: what they hold counts as what the body holds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outrider import LLM
from outrider_server.http.body_limits import MAX_CONTAINERS, MAX_ELEMENTS, MAX_ESCAPES, check_texts
from outrider_server.http.errors import ApiError
from tests.model_folders import model_folder
from tests.server.live import Live
from tests.tokenizer.vocabularies import byte_level

TEMPLATE = "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}"
TEMPLATE += "{% endfor %}{% endfor %}{{ tools or '' }}"

LARGE = {
    "lists": ["[" + ",".join(["[]"] * (MAX_CONTAINERS + 1)) + "]"],
    "names": ["{" + ",".join(f'"{i}":1' for i in range(MAX_CONTAINERS + 1)) + "}"],
    "values": ["[" + ",".join(["1"] * (MAX_ELEMENTS + 2)) + "]"],
    "depth": ["[" * (MAX_CONTAINERS + 1)],
    "lists of many calls": ["[" + ",".join(["[]"] * 999) + "]"] * 33,
}


@pytest.fixture(scope="module")
def chatting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = model_folder(tmp_path_factory.mktemp("json") / "tiny", max_position_embeddings=256)
    byte_level(folder, chat_template=TEMPLATE)
    with Live(LLM(str(Path(folder)), threads=1)) as server:
        yield server


def chat(arguments: list[str]) -> dict[str, Any]:
    calls = [{"id": "1", "function": {"name": "f", "arguments": text}} for text in arguments]
    return {"messages": [{"role": "assistant", "tool_calls": calls}, {"role": "user", "content": "go"}]}


def response(arguments: list[str]) -> dict[str, Any]:
    calls = [{"type": "function_call", "call_id": "1", "name": "f", "arguments": text} for text in arguments]
    return {"input": [*calls, {"role": "user", "content": "go"}]}


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize(
    ("path", "make"),
    [
        ("/v1/chat/completions", chat),
        ("/v1/responses", response),
        ("/apply-template", chat),
        ("/tokenize", chat),
        ("/chat/completions/input_tokens", chat),
    ],
)
def test_arguments_of_too_many_values_are_refused_unread(chatting: Live, path: str, make: Any, name: str) -> None:
    answer = chatting.client.post(path, json=make(LARGE[name]))
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large"), answer.text
    assert answer.json()["error"]["message"].startswith("the arguments of tool_calls have ")


def test_arguments_are_still_what_a_template_takes(chatting: Live) -> None:
    found = chatting.post("/apply-template", chat(['{"b": [1, "é"], "a": null}', "no JSON", "[1,"]))["prompt"]
    assert found == '{"b": [1, "é"], "a": null}"no JSON""[1,"go'


def test_text_counts_for_nothing() -> None:
    check_texts(['{"a": "' + "[,{:" * MAX_ELEMENTS + '"}', '"\\"' + "[," * MAX_ELEMENTS + '"'], "they", 0)
    check_texts(["[1, 2]"] * 1000, "they", 0)
    check_texts([], "they", 0)
    with pytest.raises(ApiError, match="they have 1048578 escaped characters"):
        check_texts(["\\n" * (MAX_ESCAPES // 2 + 1)] * 2, "they", 0)
