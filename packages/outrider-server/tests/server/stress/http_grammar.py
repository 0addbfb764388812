"""Connections made from a grammar of HTTP/1.x, and damaged: what is sent, in which pieces, and how it ends."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

Ending = Literal["read", "half", "close", "reset", "silent"]

METHODS = (
    ["GET"] * 4 + ["POST"] * 6 + ["HEAD", "OPTIONS", "PUT", "DELETE", "CONNECT", "TRACE", "get", "FROB", "", "P\x00ST"]
)
PATHS = [
    *("/health", "/v1/models", "/metrics", "/props", "/slots", "/version", "/openapi.json", "/"),
    *("/v1/completions", "/v1/chat/completions", "/completion", "/tokenize", "/detokenize", "/apply-template"),
    *("/v1/messages", "/v1/responses", "/v1/embeddings", "/api/chat", "/api/tags"),
    *("*", "http://localhost/health", "//health", "/%00", "/%zz", "/../../etc/passwd", "/v1/models/" + "x" * 3000),
    *("/health?" + "a=b&" * 500, "/health#x", "/h\xe9alth", "localhost:80", "/" + "%2e%2e/" * 200, "/ /", ""),
]
VERSIONS = (
    ["HTTP/1.1"] * 12 + ["HTTP/1.0"] * 3 + ["HTTP/0.9", "HTTP/2.0", "HTTP/9.9", "HTTP/1.10", "http/1.1", "", "ICY"]
)
HOSTS = ["localhost"] * 12 + ["127.0.0.1:80", "[::1]", "evil.example", "", "a" * 5000, "localhost, evil", "\xff"]
EXTRA = [
    *("Connection: close", "Connection: keep-alive", "Connection: upgrade", "Connection: close, upgrade, x"),
    *("Upgrade: websocket", "Upgrade: h2c", "Expect: 100-continue", "Expect: 200-ok", "Transfer-Encoding: chunked"),
    *("Transfer-Encoding: gzip, chunked", "Transfer-Encoding: identity", "Transfer-Encoding : chunked"),
    *("Transfer-Encoding: xchunked", "Content-Length: 5", "Content-Length: 0", "Content-Length: -1"),
    *("Content-Length: 99999999999999999999", "Content-Length: 5, 5", "Content-Length: 0x10", "Content-Length: "),
    *("Content-Encoding: gzip", "Range: bytes=0-1", "X-Request-Id: \t", "X: " + "y" * 20_000, " folded: line"),
    *(": no name", "no colon", "Authorization: Bearer x", "Origin: null", "Trailer: X", "TE: trailers", "Cookie: a=b"),
    *("Content-Type: text/plain", "Content-Type: application/json; charset=utf-16", "Accept: " + "a," * 2000),
]
BODIES: list[object] = [
    {"prompt": "hello", "max_tokens": 4},
    {"prompt": "hello", "max_tokens": 30, "ignore_eos": True, "stream": True},
    {"prompt": ["a", "b"], "n": 2, "max_tokens": 3, "logprobs": 2},
    {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "stream": True},
    {"content": "hello"},
    {"tokens": [5, 6, 7]},
    {"prompt": "hello", "n_predict": 4},
    {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4},
    {"input": "hello", "max_output_tokens": 4, "stream": True},
    {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "options": {"num_predict": 4}},
    {"prompt": 1},
    {},
    [],
    "x" * 70_000,
]
PLACES = [*["/v1/completions"] * 3, "/v1/chat/completions", "/tokenize", "/detokenize", "/completion"]
PLACES += ["/v1/messages", "/v1/responses", "/api/chat"]
"""Where the first of the bodies belong."""
BITS = [
    b"\r\n",
    b"\n",
    b"\r",
    b"\x00",
    b" ",
    b":",
    b"0\r\n\r\n",
    b"\xff",
    b"ffffffffffffffff\r\n",
    b"-1\r\n",
    b"\r\n\r\n",
]


@dataclass
class Connection:
    """``pieces``: what is sent, and for how many seconds nothing is sent before it."""

    pieces: list[tuple[float, bytes]]
    ending: Ending

    @property
    def sent(self) -> bytes:
        return b"".join(piece for _, piece in self.pieces)


def connection(rng: random.Random) -> Connection:
    data = b"".join(_request(rng) for _ in range(rng.choice((1, 1, 1, 2, 3, 6))))
    for _ in range(rng.choice((0, 0, 0, 0, 0, 1, 1, 3, 12))):
        data = _damaged(rng, data)
    endings: list[Ending] = ["read", "read", "read", "half", "half", "close", "reset", "silent"]
    return Connection(_pieces(rng, data), rng.choice(endings))


def _request(rng: random.Random) -> bytes:
    if rng.random() < 0.4:
        return _valid(rng)
    body = json.dumps(rng.choice(BODIES)).encode()
    method, path, version = rng.choice(METHODS), rng.choice(PATHS), rng.choice(VERSIONS)
    lines = [f"{method} {path} {version}".encode("latin-1")]
    if rng.random() < 0.95:
        lines.append(f"Host: {rng.choice(HOSTS)}".encode("latin-1"))
    if rng.random() < 0.9:
        lines.append(b"Content-Type: application/json")
    form = rng.random()
    if form < 0.6:
        lines.append(b"Content-Length: %d" % (len(body) + rng.choice((0, 0, 0, 0, 0, 0, -1, 7))))
    elif form < 0.85:
        lines.append(b"Transfer-Encoding: chunked")
        body = _chunked(rng, body)
    for _ in range(rng.choice((0, 0, 0, 1, 2, 5, 40))):
        lines.insert(rng.randint(1, len(lines)), rng.choice(EXTRA).encode("latin-1"))
    end = rng.choice((b"\r\n",) * 8 + (b"\n", b"\r"))
    return end.join(lines) + end + end + (body if rng.random() < 0.95 else b"")


def _valid(rng: random.Random) -> bytes:
    """What a client would send."""
    if rng.random() < 0.3:
        return f"{rng.choice(('GET', 'HEAD'))} {rng.choice(PATHS[:8])} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    place = rng.randrange(7)
    path, body = PLACES[place], json.dumps(BODIES[place]).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body


def _chunked(rng: random.Random, body: bytes) -> bytes:
    chunks = b""
    while body:
        size = rng.choice((1, 3, 17, 1000, 100_000))
        piece, body = body[:size], body[size:]
        extension = rng.choice((b"", b"", b"", b";a=b", b';q="\r\n"', b";" + b"x" * 500, b" ", b"\t;", b"\x00"))
        form = rng.choice(("%x", "%x", "%X", "%08x", "%d", "0x%x"))
        chunks += (
            (form % len(piece)).encode() + extension + b"\r\n" + piece + rng.choice((b"\r\n",) * 12 + (b"\n", b"x\r\n"))
        )
    trailer = rng.choice((b"", b"", b"", b"X: y\r\n", b"Content-Length: 3\r\n", b"bad trailer\r\n"))
    return chunks + rng.choice((b"0\r\n", b"0\r\n", b"0\r\n", b"000\r\n", b"0;x\r\n", b"")) + trailer + b"\r\n"


def _damaged(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    until = min(len(data), at + rng.choice((1, 1, 2, 8, 64)))
    kind = rng.randrange(6)
    if kind == 0:
        return data[:at] + rng.randbytes(until - at) + data[until:]
    if kind == 1:
        return data[:at] + data[until:]
    if kind == 2:
        return data[:until] + data[at:]  # once more
    if kind == 3:
        return data[:at] + rng.choice(BITS) + data[at:]
    if kind == 4:
        return data[:at]
    return data[:at] + bytes(byte ^ 1 << rng.randrange(8) for byte in data[at:until]) + data[until:]


def _pieces(rng: random.Random, data: bytes) -> list[tuple[float, bytes]]:
    """In one piece, in a few, or byte by byte at its beginning; with and without time between them."""
    cuts = {rng.randrange(len(data) + 1) for _ in range(rng.choice((0, 0, 0, 1, 3, 10)))}
    if rng.random() < 0.1:
        cuts |= set(range(min(len(data), 60)))
    places = sorted(cuts | {0, len(data)})
    pauses = rng.choice(((0.0,), (0.0, 0.0, 0.01), (0.0, 0.05)))
    return [(rng.choice(pauses), data[a:b]) for a, b in pairwise(places)]
