"""Bytes on a connection, and the statuses that come back before the server closes it."""

from __future__ import annotations

import json
import re
import socket
from contextlib import suppress

BODY = json.dumps({"prompt": "hello", "max_tokens": 2}).encode()
STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})[^\r]*\r\n")
REFUSED = (400,)


def post(*headers: str, body: bytes = BODY, length: str | None = "", version: str = "HTTP/1.1") -> bytes:
    """A completion; ``length``: its Content-Length, None for no such header."""
    lines = [f"POST /v1/completions {version}", "Host: localhost", "Connection: close"]
    lines += (
        ["Content-Type: application/json"] if not any(h.lower().startswith("content-type") for h in headers) else []
    )
    lines += [] if length is None else [f"Content-Length: {length or len(body)}"]
    return "\r\n".join([*lines, *headers, "", ""]).encode("latin-1") + body


def get(
    path: str, *headers: str, version: str = "HTTP/1.1", method: str = "GET", host: str | None = "localhost"
) -> bytes:
    lines = [f"{method} {path} {version}", *([] if host is None else [f"Host: {host}"]), "Connection: close", *headers]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def chunks(*pieces: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def chunked(text: bytes, coding: str = "chunked") -> bytes:
    return post(f"Transfer-Encoding: {coding}", body=text, length=None)


KEEP = get("/health").replace(b"Connection: close\r\n", b"")

Cases = dict[str, tuple[bytes, tuple[tuple[int, ...], ...]]]

FRAMING: Cases = {
    "chunked": (chunked(chunks(BODY[:5], BODY[5:])), ((200,),)),
    "chunked in capitals": (chunked(chunks(BODY), "CHUNKED"), ((200, 400),)),
    "chunked twice": (chunked(chunks(BODY), "chunked, chunked"), (REFUSED,)),
    "gzip and chunked": (chunked(chunks(BODY), "gzip, chunked"), ((400, 415, 501),)),
    "identity": (chunked(chunks(BODY), "identity"), (REFUSED,)),
    "chunked with a tab": (chunked(chunks(BODY), "\tchunked"), ((200, 400),)),
    "chunked with a vertical tab": (chunked(chunks(BODY), "\x0bchunked"), (REFUSED,)),
    "xchunked": (chunked(chunks(BODY), "xchunked"), (REFUSED,)),
    "both lengths": (post("Transfer-Encoding: chunked", body=chunks(BODY)), (REFUSED,)),
    "two equal lengths": (post(f"Content-Length: {len(BODY)}"), ((200, 400),)),
    "two lengths": (post("Content-Length: 5"), (REFUSED,)),
    "a list of equal lengths": (post(length=f"{len(BODY)}, {len(BODY)}"), ((200, 400),)),
    "a list of lengths": (post(length=f"{len(BODY)}, 5"), (REFUSED,)),
    "a length with a plus": (post(length=f"+{len(BODY)}"), (REFUSED,)),
    "a negative length": (post(length="-1"), (REFUSED,)),
    "a length in hexadecimal": (post(length="0x2a"), (REFUSED,)),
    "a length with an underscore": (post(length="4_2"), (REFUSED,)),
    "a superscript length": (post(length="\xb2"), (REFUSED,)),
    "a length of 30 digits": (post(length="9" * 30), ((400, 413),)),
    "a length of 5000 digits": (post(length="9" * 5000), ((400, 413, 431),)),
    "no length": (post(length=None), (REFUSED, ())),
    "a length of zero": (post(length="0", body=b""), (REFUSED,)),
    "a chunk of a negative size": (chunked(b"-1\r\nx\r\n0\r\n\r\n"), (REFUSED,)),
    "a chunk in 0x": (chunked(b"0x2\r\nxx\r\n0\r\n\r\n"), (REFUSED,)),
    "a chunk beyond 64 bits": (chunked(b"f" * 17 + b"\r\nx\r\n0\r\n\r\n"), ((400, 413), ())),
    "a chunk of 8 EB": (chunked(b"7fffffffffffffff\r\nx"), ((400, 413), ())),
    "a chunk with bare line feeds": (chunked(b"2\nxx\n0\n\n"), (REFUSED, ())),
    "a chunk that is longer": (chunked(b"2\r\nxxx\r\n0\r\n\r\n"), (REFUSED,)),
    "a chunk's long extension": (chunked(b"2;" + b"a" * 100_000 + b"\r\n{}\r\n0\r\n\r\n"), ((400, 413, 431),)),
    "a chunk's quoted extension": (chunked(b'2;a="\r\n"\r\n{}\r\n0\r\n\r\n'), (REFUSED,)),
    "trailers": (chunked(chunks(BODY)[:-2] + b"Content-Length: 5\r\nX: y\r\n\r\n"), ((200, 400),)),
    "a thousand trailers": (chunked(chunks(BODY)[:-2] + b"X: y\r\n" * 100_000 + b"\r\n"), ((200, 400, 431),)),
    "a body behind a GET": (get("/health", "Content-Length: 5") + b"GET /", ((200, 400),)),
    "a request hidden in a GET's body": (
        KEEP.replace(b"\r\n\r\n", b"\r\nContent-Length: 40\r\n\r\n") + get("/metrics"),
        ((200,), (400,)),
    ),
}
LINES: Cases = {
    "no version": (b"GET /health\r\n\r\n", (REFUSED, ())),
    "HTTP/1.0": (get("/health", version="HTTP/1.0"), ((200,),)),
    "HTTP/0.9": (get("/health", version="HTTP/0.9"), ((400, 505),)),
    "HTTP/2.0": (get("/health", version="HTTP/2.0"), ((400, 505),)),
    "HTTP/1.9": (get("/health", version="HTTP/1.9"), ((200, 400, 505),)),
    "HTTP/1.1 twice": (get("/health", version="HTTP/1.1 HTTP/1.1"), (REFUSED,)),
    "HTTP 2's beginning": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", ((400, 505),)),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 300, (REFUSED, ())),
    "a method in small letters": (get("/health", method="get"), ((400, 405, 501),)),
    "a method with a space": (get("/health", method="GE T"), (REFUSED,)),
    "an unknown method": (get("/health", method="BREW"), ((400, 405, 501),)),
    "a method of 10,000 letters": (get("/health", method="A" * 10_000), ((400, 405, 431, 501),)),
    "CONNECT": (get("localhost:80", method="CONNECT"), ((400, 404, 405),)),
    "TRACE": (get("/health", "X-Secret: x", method="TRACE"), ((400, 405, 501),)),
    "OPTIONS": (get("*", method="OPTIONS"), ((200, 204, 400, 404, 405),)),
    "two spaces": (b"GET  /health HTTP/1.1\r\nHost: localhost\r\n\r\n", (REFUSED,)),
    "a tab": (b"GET\t/health HTTP/1.1\r\nHost: localhost\r\n\r\n", (REFUSED,)),
    "bare line feeds": (get("/health").replace(b"\r\n", b"\n"), ((200, 400),)),
    "bare carriage returns": (get("/health").replace(b"\r\n", b"\r"), (REFUSED, ())),
    "empty lines before": (b"\r\n\r\n" + get("/health"), ((200, 400),)),
    "no path": (b"GET HTTP/1.1\r\nHost: localhost\r\n\r\n", (REFUSED,)),
    "a whole address": (get("http://localhost/health"), ((200, 400, 404),)),
    "another's whole address": (get("http://evil.example/health"), ((200, 400, 404, 421),)),
    "a fragment": (get("/health#x"), ((200, 400, 404),)),
    "a null character": (get("/health\0"), (REFUSED,)),
    "an encoded null character": (get("/v1/models/%00"), ((400, 404),)),
    "bytes that are no UTF-8": (get("/v1/models/\xff"), ((400, 404),)),
    "bad percent signs": (get("/v1/models/%zz%"), ((400, 404),)),
    "a path upwards": (get("/../../etc/passwd"), ((400, 404),)),
    "an encoded path upwards": (get("/v1/models/..%2f..%2fetc%2fpasswd"), ((400, 404),)),
    "two slashes": (get("//evil.example/health"), ((400, 404),)),
    "a backslash": (get("/\\evil.example"), ((400, 404),)),
    "a path of 100,000 letters": (get("/" + "a" * 100_000), ((404, 414, 431),)),
    "a query of 50,000 letters": (get("/health?" + "a" * 50_000), ((200, 414, 431),)),
    "a semicolon": (get("/health;x=1"), ((400, 404),)),
}
HEADERS: Cases = {
    "no host": (get("/health", host=None), (REFUSED,)),
    "an empty host": (get("/health", host=""), ((400, 421),)),
    "two hosts": (get("/health", "Host: evil.example"), (REFUSED,)),
    "another host": (get("/health", host="evil.example"), ((421,),)),
    "another host with a port": (get("/health", host="evil.example:80"), ((421,),)),
    "a host that begins well": (get("/health", host="localhost.evil.example"), ((421,),)),
    "a host that ends well": (get("/health", host="evil.localhost.example"), ((421,),)),
    "a host with a user": (get("/health", host="localhost@evil.example"), ((400, 421),)),
    "a host with a comma": (get("/health", host="localhost, evil.example"), ((400, 421),)),
    "a host in capitals": (get("/health", host="LOCALHOST"), ((200,),)),
    "a host with a dot": (get("/health", host="localhost."), ((200, 421),)),
    "an address of six": (get("/health", host="[::1]:8000"), ((200,),)),
    "a host with a strange port": (get("/health", host="localhost:99999999"), ((200, 400, 421),)),
    "another host by another name": (get("/health", "X-Forwarded-Host: evil.example"), ((200,),)),
    "a folded line": (get("/health", "X: a\r\n b"), ((200, 400),)),
    "a name with a space": (get("/health", "X : a"), (REFUSED,)),
    "a name with a space for a length": (
        post(length=None).replace(b"\r\n\r\n", b"\r\nContent-Length : 5\r\n\r\n"),
        (REFUSED,),
    ),
    "no name": (get("/health", ": a"), (REFUSED,)),
    "no colon": (get("/health", "abc"), (REFUSED,)),
    "a null character in a value": (get("/health", "X: a\0b"), (REFUSED,)),
    "a carriage return in a value": (get("/health", "X: a\rb"), (REFUSED,)),
    "a thousand headers": (get("/health", *(f"X{i}: y" for i in range(1000))), ((200, 431),)),
    "ten thousand headers": (get("/health", *(f"X{i}: y" for i in range(10_000))), ((431,),)),
    "a header of 100,000 letters": (get("/health", "X: " + "y" * 100_000), ((431,),)),
    "an expectation": (post("Expect: 100-continue"), ((200,),)),
    "a strange expectation": (post("Expect: tea"), ((200, 400, 417),)),
    "an upgrade to a socket": (
        get(
            "/health", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: x", "Sec-WebSocket-Version: 13"
        ),
        ((200, 400, 403, 404, 426),),
    ),
    "an upgrade to HTTP/2": (get("/health", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA"), ((200, 400),)),
    "another page": (post("Origin: http://evil.example"), ((200, 403),)),
    "a form": (post("Content-Type: text/plain"), ((415,),)),
    "a form of a page": (post("Content-Type: application/x-www-form-urlencoded"), ((415,),)),
    "JSON with a parameter": (post("Content-Type: application/json; charset=utf-8"), ((200,),)),
    "JSON in another encoding": (post("Content-Type: application/json; charset=utf-16"), ((200, 400, 415),)),
    "JSON and a form": (post("Content-Type: text/plain; application/json"), ((415,),)),
    "compressed": (post("Content-Encoding: gzip"), ((400, 415),)),
    "an id with a line break": (get("/health", "X-Request-Id: a%0d%0aSet-Cookie: x"), ((200,),)),
    "an id of 8,000 letters": (get("/health", "X-Request-Id: " + "a" * 8000), ((200, 400, 431),)),
    "an id of other letters": (get("/health", "X-Request-Id: \xff\xfe"), ((200,),)),
    "a range": (get("/health", "Range: bytes=0-0"), ((200,),)),
    "another method by a header": (post("X-HTTP-Method-Override: DELETE"), ((200,),)),
}
CONNECTIONS = FRAMING | LINES | HEADERS


def answered(port: int, data: bytes, seconds: float = 20.0) -> tuple[list[int], bytes]:
    """The statuses that come back, and all bytes, until the server closes; we stop sending after ``data``."""
    received = bytearray()
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as connection:
        with suppress(OSError):  # closed before all was sent
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
        with suppress(OSError):
            while piece := connection.recv(65536):
                received += piece
    return [int(status) for status in STATUS.findall(bytes(received))], bytes(received)


def is_right(statuses: list[int], right: tuple[tuple[int, ...], ...]) -> bool:
    """An answer of each kind in turn, or none if one of the kinds is ``()``. Interim responses do not count."""
    found = [status for status in statuses if status != 100]
    if () in right:
        return not found or (len(found) == 1 and found[0] in right[0])
    return len(found) == len(right) and all(status in kind for status, kind in zip(found, right, strict=True))
