"""A small chat server without a model: it calls tools rightly, or with one planted fault."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Message = dict[str, Any]


class ToolServer:
    """Answers rightly; a subclass for each fault, which is of requests that do not turn drafts off."""

    knows_speculation = True
    """Whether ``speculation`` is read; else it is ignored, as many servers do."""

    def __init__(self) -> None:
        self.count = 0
        self._words = set[str]()
        self._lock = threading.Lock()

    def status_of(self, body: Message) -> int:
        """The status of an answer to a request with tools; a body comes with 200 alone."""
        return 200

    # -- faults: each changes the message of a whole answer, or the deltas of a stream

    def spoil(self, message: Message) -> Message:
        """The message of an answer with drafts."""
        return message

    def spoil_deltas(self, deltas: list[Message]) -> list[Message]:
        """The deltas of a streamed answer with drafts."""
        return deltas

    def other_word(self, word: str) -> str:
        """A word of another request."""
        with self._lock:
            self._words.add(word)
            return next((other for other in self._words if other != word), "zzz")

    # -- the right answers

    def message(self, body: Message) -> Message:
        """A call where one is required, JSON where a form is, or text."""
        choice = body.get("tool_choice")
        if "response_format" in body:
            schema = body["response_format"]["json_schema"]["schema"]
            return {"content": json.dumps(least(schema)), "finish_reason": "stop"}
        if choice in (None, "auto"):
            return {"content": f"About {body['messages'][0]['content'][-12:]}", "finish_reason": "stop"}
        tools = {tool["function"]["name"]: tool["function"]["parameters"] for tool in body["tools"]}
        name = next(iter(tools)) if choice == "required" else choice["function"]["name"]
        arguments = json.dumps(least(tools[name]))
        return {"content": "", "calls": [[name, arguments]], "finish_reason": "tool_calls"}


def least(schema: Message) -> Any:
    """A small value of a schema of the suite."""
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema["type"]
    if kind == "object":
        return {name: least(inner) for name, inner in schema["properties"].items()}
    simple = {"string": "", "integer": 7, "boolean": True, "array": []}
    return None if isinstance(kind, list) else simple[kind]


def deltas_of(message: Message) -> list[Message]:
    """A stream of a message: every call's arguments come in pieces of eight characters."""
    content = message["content"]
    found: list[Message] = [{"content": content[i : i + 4]} for i in range(0, len(content), 4)]
    for index, (name, arguments) in enumerate(message.get("calls", ())):
        head = {"index": index, "id": f"call_{index}", "function": {"name": name, "arguments": ""}}
        found.append({"tool_calls": [head]})
        pieces = [arguments[i : i + 8] for i in range(0, len(arguments), 8)]
        found += [{"tool_calls": [{"index": index, "function": {"arguments": piece}}]} for piece in pieces]
    return found


def whole_of(message: Message) -> Message:
    """The answer in one piece."""
    calls = [
        {"id": f"call_{i}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for i, (name, arguments) in enumerate(message.get("calls", ()))
    ]
    inner = {"role": "assistant", "content": message["content"], "tool_calls": calls}
    return {"choices": [{"index": 0, "message": inner, "finish_reason": message["finish_reason"]}]}


@contextmanager
def serving(server: ToolServer) -> Iterator[str]:
    """The URL at which ``server`` answers."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(200, json.dumps({"data": [{"id": "toy"}]}))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked = body.get("speculation")
            if server.knows_speculation and asked not in (None, "off"):
                return self._send(400, json.dumps({"error": {"message": "speculation is off, or left out"}}))
            if "tools" in body and (status := server.status_of(body)) != 200:
                return self._send(status, "{}")
            drafts = not (server.knows_speculation and asked == "off")
            message = server.message(body) if "tools" in body else {"content": "hi", "finish_reason": "stop"}
            if drafts:
                message = server.spoil(message)
            if not body.get("stream"):
                return self._send(200, json.dumps(whole_of(message)))
            deltas = server.spoil_deltas(deltas_of(message)) if drafts else deltas_of(message)
            events = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
            events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": message["finish_reason"]}]})
            lines = [f"data: {json.dumps(event)}\n\n" for event in events]
            return self._send(200, "".join([*lines, "data: [DONE]\n\n"]))

        def _send(self, status: int, text: str) -> None:
            data = text.encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: object) -> None:
            pass

    class Listener(ThreadingHTTPServer):
        request_queue_size = 64

    listener = Listener(("127.0.0.1", 0), Handler)
    threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.server_port}"
    finally:
        listener.shutdown()
        listener.server_close()
