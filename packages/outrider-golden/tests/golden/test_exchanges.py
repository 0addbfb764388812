"""Conversations with a server of any kind, put together from its answers and compared."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from outrider.errors import ConfigError
from outrider_golden.exchanges import Exchange, compare, golden_lines, read_exchange
from outrider_golden.proxy import Proxy

CALL = {"id": "call_8f3", "type": "function", "function": {"name": "book", "arguments": '{"at": 8}'}}
CHUNKS: list[dict[str, Any]] = [
    {"role": "assistant", "content": "I "},
    {"content": "book."},
    {"tool_calls": [{"index": 0, "id": "call_8f3", "function": {"name": "book", "arguments": '{"at"'}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": ": 8}"}}]},
]


def exchange(**asked: Any) -> Exchange:
    return Exchange("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]} | asked, 7)


def whole(message: Mapping[str, Any], **asked: Any) -> Exchange:
    made = exchange(**asked)
    made.add({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})
    return made


def reread(*found: Exchange) -> list[Exchange]:
    return [read_exchange(json.dumps(line), "line") for line in golden_lines(found)]


def test_a_stream_is_put_together() -> None:
    streamed = exchange()
    for delta in CHUNKS:
        streamed.add({"choices": [{"index": 0, "delta": delta}]})
    streamed.add({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    assert compare(reread(streamed), [whole({"content": "I book.", "tool_calls": [CALL]})]) == ""


def test_drawn_ids_of_tool_calls_are_no_difference() -> None:
    def talk(name: str) -> Exchange:
        messages = [
            {"role": "assistant", "tool_calls": [CALL | {"id": name}]},
            {"role": "tool", "tool_call_id": name, "content": "done"},
        ]
        return whole({"content": "Booked."}, messages=messages)

    assert compare(reread(talk("call_1b")), [talk("call_2c")]) == ""
    unpaired = talk("call_1b")
    unpaired.request["messages"][1]["tool_call_id"] = "another"
    assert "is none of the golden ones" in compare(reread(talk("call_1b")), [unpaired])


def test_another_call_text_and_number_of_answers_are_named() -> None:
    golden = reread(whole({"content": "I book.", "tool_calls": [CALL]}))
    found = compare(golden, [whole({"content": "I book.", "tool_calls": []})])
    assert "character 8 differs; the server gives no tokens" in found
    assert 'calls [{"name": "book"' in found
    assert "character 3 differs" in compare(golden, [whole({"content": "I cook.", "tool_calls": [CALL]})])
    assert "1 golden answers, 0 here" in compare(golden, [exchange()])
    assert "there are no more golden ones" in compare([], [exchange()])
    assert "1 of 1 golden conversations were not held" in compare(golden, [])


def test_a_line_of_another_kind_is_refused() -> None:
    for line in ('{"format": "other"}', "[]", "{", '{"format": "outrider-golden-http 1", "more": 1, "answers": []}'):
        with pytest.raises(ConfigError, match="no golden conversation"):
            read_exchange(line, "file, line 1")


@pytest.fixture
def plain_server() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A server that refuses log-probabilities, and what it was asked."""
    asked: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            refused = "logprobs" in asked[-1]
            body = json.dumps({} if refused else {"choices": [{"message": {"content": self.headers["Authorization"]}}]})
            self.send_response(400 if refused else 200)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format: str, *args: object) -> None:
            """Nothing to say."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", asked
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_server_without_log_probabilities_is_asked_without_them(
    plain_server: tuple[str, list[dict[str, Any]]],
) -> None:
    url, asked = plain_server
    proxy = Proxy(url)
    try:
        for _ in range(2):
            data = json.dumps({"messages": []}).encode()
            request = urllib.request.Request(proxy.url + "/chat/completions", data, {"Authorization": "Bearer k"})
            with urllib.request.urlopen(request) as answer:
                assert json.loads(answer.read())["choices"][0]["message"]["content"] == "Bearer k"
    finally:
        proxy.close()
    assert [sorted(body) for body in asked] == [
        ["logprobs", "messages", "seed", "top_logprobs"],
        ["messages", "seed"],
    ] * 2
    assert asked[1]["seed"] != asked[3]["seed"]
    assert [one.request for one in proxy.exchanges] == [{"messages": []}] * 2
    assert [one.answers[0].text for one in proxy.exchanges] == ["Bearer k"] * 2
