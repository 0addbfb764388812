"""Connections that drip, stop, promise and repeat: what is sent first, what then drips, and what must come back."""

from __future__ import annotations

from dataclasses import dataclass

from tests.server.attack.connections import BODY, get, post

CHUNKED = post("Transfer-Encoding: chunked", body=b"", length=None)
KEEP = get("/health").replace(b"Connection: close\r\n", b"")


@dataclass(frozen=True)
class Slow:
    """``first`` is sent at once, ``drip`` again and again; ``right``: statuses of the answers, before it is cut off."""

    first: bytes
    drip: bytes = b""
    right: tuple[tuple[int, ...], ...] = ((),)


SLOW: dict[str, Slow] = {
    "nothing": Slow(b"", right=((408,),)),
    "a method letter by letter": Slow(b"", b"G", ((400, 408),)),
    "a path letter by letter": Slow(b"GET /", b"a", ((408,),)),
    "a header's value": Slow(b"GET /health HTTP/1.1\r\nX: ", b"a", ((408,),)),
    "headers one by one": Slow(b"GET /health HTTP/1.1\r\n", b"X: y\r\n", ((408,),)),
    "folded lines": Slow(b"GET /health HTTP/1.1\r\nX: y\r\n", b" z\r\n", ((408,),)),
    "empty lines": Slow(b"", b"\r\n", ((400, 408),)),
    "half a line's end": Slow(b"GET /health HTTP/1.1\r\nHost: a\r\n\r", b"", ((408,),)),
    "a TLS hello": Slow(b"\x16\x03\x01\x02\x00", b"\0", ((400, 408),)),
    "HTTP 2's beginning": Slow(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\0", ((400,),)),
    "a body byte by byte": Slow(post()[: -len(BODY)], b" ", ((408,),)),
    "a body that stops": Slow(post()[:-5], right=((408,),)),
    "no body": Slow(post()[: -len(BODY)], right=((408,),)),
    "an expectation that is not followed": Slow(post("Expect: 100-continue")[: -len(BODY)], right=((408,),)),
    "chunks byte by byte": Slow(CHUNKED, b"1\r\n \r\n", ((408,),)),
    "a chunk's size": Slow(CHUNKED, b"0", ((400, 408),)),
    "a chunk's extension": Slow(CHUNKED + b"1;", b"a", ((400, 408),)),
    "a chunk's content": Slow(CHUNKED + b"ffff\r\n", b" ", ((408,),)),
    "trailers one by one": Slow(CHUNKED + b"2\r\n{}\r\n0\r\n", b"X: y\r\n", ((400, 408),)),
    "a body for a path that is not there": Slow(
        b"POST /nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999\r\n\r\n", b"x", ((404,),)
    ),
    "a body for another host": Slow(
        b"POST /x HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 9999\r\n\r\n", b"x", ((421,),)
    ),
    "a request, then nothing": Slow(KEEP, right=((200,),)),
    "a request, then half of one": Slow(KEEP + b"GET /h", right=((200,), (408,))),
    "a request, then one letter by letter": Slow(KEEP + b"GET /", b"a", ((200,), (408,))),
    "a request, then empty lines": Slow(KEEP, b"\r\n", ((200,), (400, 408))),
    "two requests, then a drip": Slow(KEEP * 2 + b"GET /", b"a", ((200,), (200,), (408,))),
}

HIDDEN = b"GET /hidden HTTP/1.1\r\nHost: localhost\r\n\r\n"
ZERO = b"0\r\n\r\n" + HIDDEN


def both(*lines: str, body: bytes = ZERO) -> bytes:
    head = "\r\n".join(["POST /tokenize HTTP/1.1", "Host: localhost", "Content-Type: application/json", *lines, "", ""])
    return head.encode("latin-1") + body


SMUGGLED: dict[str, bytes] = {
    "a length, then chunks": both(f"Content-Length: {len(ZERO)}", "Transfer-Encoding: chunked"),
    "chunks, then a length": both("Transfer-Encoding: chunked", "Content-Length: 4"),
    "chunks twice": both("Transfer-Encoding: chunked", "Transfer-Encoding: chunked"),
    "chunks and identity": both("Transfer-Encoding: chunked", "Transfer-Encoding: identity"),
    "identity and chunks": both("Transfer-Encoding: identity", "Transfer-Encoding: chunked"),
    "chunks in a list": both("Transfer-Encoding: chunked, identity"),
    "chunks in quotes": both('Transfer-Encoding: "chunked"'),
    "chunks with a parameter": both("Transfer-Encoding: chunked;q=1"),
    "chunks behind a comma": both("Transfer-Encoding: ,chunked"),
    "chunks misspelt": both("Transfer-Encoding: chunked\x80"),
    "chunks in a folded line": both("Transfer-Encoding:\r\n chunked", "Content-Length: 4"),
    "chunks behind a space": both(" Transfer-Encoding: chunked", "Content-Length: 4"),
    "a space before the colon": both("Transfer-Encoding : chunked", "Content-Length: 4"),
    "an underscore": both("Transfer_Encoding: chunked", f"Content-Length: {len(ZERO)}"),
    "another letter": both("Tran\u017ffer-Encoding: chunked".encode().decode("latin-1"), "Content-Length: 0", body=b""),
    "two lengths": both("Content-Length: 5", f"Content-Length: {len(ZERO)}"),
    "two lengths in one": both(f"Content-Length: 5, {len(ZERO)}"),
    "a length behind a null": both("Content-Length: \0" + str(len(ZERO))),
    "a length with a tab inside": both("Content-Length: 4\t0"),
    "a length in octal": both("Content-Length: 0o50"),
    "a length with a point": both("Content-Length: 5.0"),
    "a carriage return inside": both("X: a\rTransfer-Encoding: chunked", "Content-Length: 4"),
    "chunks of HTTP/1.0": both("Transfer-Encoding: chunked").replace(b"HTTP/1.1", b"HTTP/1.0", 1),
    "an upgrade": both(
        "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: x", f"Content-Length: {len(ZERO)}"
    ),
    "a length named by Connection": both("Connection: Content-Length, close", f"Content-Length: {len(ZERO)}"),
    "a chunk's size with a sign": both("Transfer-Encoding: chunked", body=b"+0\r\n\r\n" + HIDDEN),
    "a chunk's size with a space": both("Transfer-Encoding: chunked", body=b" 0\r\n\r\n" + HIDDEN),
    "a chunk without its end": both("Transfer-Encoding: chunked", body=b"2\r\n{}0\r\n\r\n" + HIDDEN),
    "a chunk with another end": both("Transfer-Encoding: chunked", body=b"2\r\n{}XX0\r\n\r\n" + HIDDEN),
    "an extension with a line feed": both("Transfer-Encoding: chunked", body=b"2;\nxx\r\n{}\r\n0\r\n\r\n" + HIDDEN[:0]),
}
"""Requests of which two readers may see two: the one that is hidden must never be answered."""
