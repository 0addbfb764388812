"""The engine with a fault of choice behind OpenAI's completions: n, seeds, biases, log-probabilities, streams."""

from __future__ import annotations

import json
import math
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from typing import Any, Literal

from tests.analysis.certify.tool_server import ToolServer, deltas_of, whole_of
from tests.referee.faulty_engine import LETTERS, Engine, Fault, target

MAX_N = 16


Quirk = Literal["llama.cpp", "never samples", "no biases", "broken biases", "no completions", "other streams"]
"""A habit of other engines: log-probabilities in the form of chats, or requests that they refuse."""


class _RefusedError(Exception):
    """With the code of the answer."""


def answer(engine: Engine, body: dict[str, Any], knows_drafts: bool, quirk: Quirk | None = None) -> dict[str, Any]:
    """The choices of a completion."""
    if quirk == "no completions" or (quirk == "no biases" and "logit_bias" in body):
        raise _RefusedError(400)
    if quirk == "broken biases" and "logit_bias" in body:
        raise _RefusedError(500)
    if quirk == "never samples":
        body = {**body, "temperature": 0, "n": 1}
    n, drafts = body.get("n", 1), body.get("speculation", "on") if knows_drafts else "on"
    if n > MAX_N or drafts not in ("on", "off"):
        raise _RefusedError(400)
    code = zlib.crc32(body["prompt"].encode())
    prompt = (code % len(LETTERS), code // len(LETTERS) % len(LETTERS))
    bias = {int(key): value for key, value in body.get("logit_bias", {}).items()}
    temperature, count = float(body["temperature"]), int(body["max_tokens"])
    generate = engine.plain if drafts == "off" else engine.generate
    choices = []
    for i in range(n):
        ids = generate(prompt, count, temperature, (body["prompt"], body.get("seed"), i), bias)
        choice: dict[str, Any] = {"text": "".join(LETTERS[x] for x in ids), "token_ids": ids}
        if body.get("logprobs") is not None:
            choice["logprobs"] = _logprobs([*prompt, *ids], bias, body["logprobs"])
        if quirk == "llama.cpp":
            del choice["token_ids"]
            choice["logprobs"] = _as_chat(ids, choice["logprobs"]) if body.get("logprobs") else None
        choices.append(choice)
    return {"choices": choices, "usage": {"completion_tokens": n * count}}


def _logprobs(tokens: list[int], bias: dict[int, float], top: int) -> dict[str, Any]:
    rows = [target((a, b), 1.0, tuple(bias.items())) for a, b in pairwise(tokens[:-1])]
    best = [sorted(((math.log(max(p, 1e-99)), LETTERS[i]) for i, p in enumerate(row)), reverse=True) for row in rows]
    return {
        "tokens": [LETTERS[x] for x in tokens[2:]],
        "top_logprobs": [{letter: value for value, letter in row[:top]} for row in best],
    }


def _as_chat(ids: list[int], logprobs: dict[str, Any]) -> dict[str, Any]:
    """Log-probabilities as chats have them, and with ids, as llama.cpp's server answers completions."""
    rows = zip(ids, logprobs["tokens"], logprobs["top_logprobs"], strict=True)
    content = [
        {"id": code, "token": text, "top_logprobs": [{"token": each, "logprob": x} for each, x in top.items()]}
        for code, text, top in rows
    ]
    return {"content": content}


@contextmanager
def faulty_server(
    fault: Fault | None = None,
    *,
    knows_drafts: bool = True,
    chat: ToolServer | None = None,
    knows_tools: bool = True,
    quirk: Quirk | None = None,
) -> Iterator[str]:
    """The URL of a server with ``fault`` in its speculation; None: without one.

    ``knows_drafts``: requests can turn drafts off. ``chat``: answers chats; None: there are none.
    ``knows_tools``: of chats.
    """
    engine = Engine(fault)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(200, {"data": [{"id": "table"}], "version": "1.2.3"})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if not self.path.endswith("/v1/completions"):
                return self._chat(body)
            try:
                found = answer(engine, body, knows_drafts, quirk)
            except _RefusedError as error:
                return self._send(error.args[0], {"error": "refused"})
            if not body.get("stream"):
                return self._send(200, found)
            text = found["choices"][0]["text"]
            if quirk == "other streams":
                text = text[:5] + ("a" if text[5] != "a" else "b") + text[6:]
            events = [json.dumps({"choices": [{"text": text[i : i + 5]}]}) for i in range(0, len(text), 5)]
            self._write(200, "".join(f"data: {event}\n\n" for event in [*events, "[DONE]"]).encode())

        def _chat(self, body: dict[str, Any]) -> None:
            if chat is None:
                return self._send(404, {})
            if body.get("speculation") not in (None, "off") or ("tools" in body and not knows_tools):
                return self._send(400, {})
            message = chat.message(body) if "tools" in body else {"content": "hi", "finish_reason": "stop"}
            if not body.get("stream"):
                return self._send(200, whole_of(message))
            events = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas_of(message)]
            events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": message["finish_reason"]}]})
            lines = [f"data: {json.dumps(event)}\n\n" for event in events]
            return self._write(200, "".join([*lines, "data: [DONE]\n\n"]).encode())

        def _send(self, code: int, body: dict[str, Any]) -> None:
            self._write(code, json.dumps(body).encode())

        def _write(self, code: int, data: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        request_queue_size = 64  # connections at once; a refused one would be tried again after a second

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.01), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
