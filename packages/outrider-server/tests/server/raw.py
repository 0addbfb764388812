"""HTTP as bytes on a socket, for what no client library sends."""

from __future__ import annotations

import json
import socket
from typing import Any

from tests.server.live import Live

COMPLETIONS = "/v1/completions"
ENDLESS: dict[str, Any] = {"prompt": "hello", "max_tokens": 900, "ignore_eos": True, "seed": 1}


def connect(live: Live, seconds: float = 20.0) -> socket.socket:
    return socket.create_connection(("127.0.0.1", live.port), timeout=seconds)


def post(body: dict[str, Any], *headers: str, version: str = "1.1", path: str = COMPLETIONS) -> bytes:
    """A whole request."""
    data = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/{version}", "Host: localhost", "Content-Type: application/json"]
    return "\r\n".join([*lines, f"Content-Length: {len(data)}", *headers, "", ""]).encode() + data


def get(path: str, *headers: str, version: str = "1.1") -> bytes:
    return "\r\n".join([f"GET {path} HTTP/{version}", "Host: localhost", *headers, "", ""]).encode()


def rest(connection: socket.socket) -> bytes:
    """All that comes until the server closes the connection."""
    received = bytearray()
    while piece := connection.recv(65536):
        received += piece
    return bytes(received)


def closed(connection: socket.socket) -> bool:
    """Whether the server has ended the connection, or does so within the socket's timeout."""
    try:
        while connection.recv(65536):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    return True


def final(received: bytes) -> bytes:
    """What comes after interim responses."""
    while received.startswith(b"HTTP/1.1 1"):
        received = received.partition(b"\r\n\r\n")[2]
    return received
