"""A server before a server: it passes requests on, and keeps them with their answers."""

from __future__ import annotations

import hashlib
import json
import threading
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from outrider_golden.exchanges import Exchange

__all__ = ["Proxy"]

_TIMEOUT_S = 600.0
_LIKELIEST = 5
_PASSED = ("authorization", "api-key", "x-api-key", "accept")


class Proxy:
    """Listens on a free port of this machine until ``close``."""

    def __init__(self, upstream: str) -> None:
        """``upstream``: the address of an OpenAI-compatible server, with or without ``/v1``."""
        self.upstream = upstream.rstrip("/").removesuffix("/v1")
        self.exchanges: list[Exchange] = []
        self._asked: Counter[str] = Counter()
        self._lock = threading.Lock()
        proxy = self

        class Handler(_Handler):
            owner = proxy

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def forget(self) -> None:
        """A test begins."""
        self.exchanges, self._asked = [], Counter()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()

    def exchange(self, path: str, asked: dict[str, Any]) -> Exchange:
        """A new exchange. A request without a seed gets one that depends on it, and on the equal ones before it."""
        text = f"{path} {json.dumps(asked, sort_keys=True)}"
        with self._lock:
            self._asked[text] += 1
            digest = hashlib.blake2b(f"{text} {self._asked[text]}".encode(), digest_size=4).digest()
            seed = int.from_bytes(digest) >> 1 if asked.get("seed") is None else asked["seed"]
            self.exchanges.append(Exchange(path, asked, seed))
            return self.exchanges[-1]

    def bodies(self, exchange: Exchange) -> Iterator[dict[str, Any]]:
        """The request with its seed, and with log-probabilities where the server takes them."""
        path, asked = exchange.path, exchange.request
        seeded = asked | {"seed": exchange.seed}
        if asked.get("logprobs") is None:
            more: dict[str, Any] = {"logprobs": _LIKELIEST}
            if path.endswith("/chat/completions"):
                more = {"logprobs": True, "top_logprobs": _LIKELIEST}
            yield seeded | more
        yield seeded


class _Handler(BaseHTTPRequestHandler):
    owner: Proxy
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:  # the name that http.server calls
        self._answer(self._open(None), None)

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = self.path.partition("?")[0]
        try:
            asked = json.loads(data)
        except ValueError:
            asked = None
        if not isinstance(asked, dict) or not path.endswith("/completions"):
            self._answer(self._open(data), None)
            return
        exchange = self.owner.exchange(path, asked)
        for body in self.owner.bodies(exchange):
            answer = self._open(json.dumps(body).encode())
            if answer is None or answer.status not in (400, 422):
                break
        self._answer(answer, exchange)

    def _open(self, data: bytes | None) -> HTTPResponse | urllib.error.HTTPError | None:
        """The server's answer, errors included; None if it cannot be reached."""
        headers = {name: value for name in _PASSED if (value := self.headers.get(name)) is not None}
        if data is not None:
            headers["Content-Type"] = "application/json"
        request = urllib.request.Request(self.owner.upstream + self.path, data, headers)
        try:
            found: HTTPResponse = urllib.request.urlopen(request, timeout=_TIMEOUT_S)
            return found
        except urllib.error.HTTPError as error:
            return error
        except OSError as error:
            body = json.dumps({"error": {"message": f"no server answers at {self.owner.upstream}: {error}"}}).encode()
            self._head(502, "application/json", len(body))
            self.wfile.write(body)
            return None

    def _answer(self, answer: HTTPResponse | urllib.error.HTTPError | None, exchange: Exchange | None) -> None:
        if answer is None:
            return
        kind = answer.headers.get("Content-Type") or "application/json"
        status = answer.status or 502
        if not kind.startswith("text/event-stream"):
            body = answer.read()
            if exchange is not None and status == 200:
                exchange.add(json.loads(body))
            self._head(status, kind, len(body))
            self.wfile.write(body)
            return
        self._head(status, kind, None)
        with suppress(ConnectionError):  # the agent has left
            while line := answer.readline():
                if exchange is not None and line.startswith(b"data: {"):
                    exchange.add(json.loads(line[6:]))
                self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")

    def _head(self, status: int, kind: str, length: int | None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header(*(("Transfer-Encoding", "chunked") if length is None else ("Content-Length", str(length))))
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Requests are in the golden file."""
