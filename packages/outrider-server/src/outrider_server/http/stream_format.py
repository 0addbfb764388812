"""How chunks are written into a stream: server-sent events, with or without names, or a line of JSON each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from outrider_server.http.errors import ApiError, to_json


class Frame(bytes):
    """A chunk that has been written already, as it is sent."""


Chunk = dict[str, Any] | bytes
"""An event's JSON, or the bytes of it where they have been written elsewhere."""


@dataclass(frozen=True)
class StreamFormat:
    """Server-sent events."""

    end: bytes = b""
    """What ends a stream."""
    named: bool = False
    """Whether an event has the ``type`` of its JSON as its name."""
    failure: Callable[[ApiError], dict[str, Any]] = ApiError.body
    """The chunk that tells of a failure after the first token."""
    media_type: str = "text/event-stream"
    ping: bytes = b": \n\n"
    """What readers skip, to be sent in silence."""

    def event(self, chunk: Chunk) -> bytes:
        """One chunk, as it is sent."""
        if isinstance(chunk, Frame):
            return chunk
        data = b"data: " + (chunk if isinstance(chunk, bytes) else to_json(chunk)) + b"\n\n"
        if self.named and isinstance(chunk, dict):
            return b"event: " + str(chunk["type"]).encode() + b"\n" + data
        return data

    def padded(self, data: bytes, multiple: int) -> bytes:
        """``data``, filled up with a comment to a multiple of so many bytes (0: as it is)."""
        if multiple == 0:
            return data
        short = -(len(data) + 4) % multiple  # a comment is at least ": \n\n"
        return data + b": " + b"-" * short + b"\n\n"


class JsonLines(StreamFormat):
    """A JSON object a line, filled up with spaces, which may stand around JSON.

    Line breaks beyond ASCII are escaped: many readers end a line there too.
    """

    def event(self, chunk: Chunk) -> bytes:
        data = chunk if isinstance(chunk, bytes) else to_json(chunk)
        for character in ("\u0085", "\u2028", "\u2029"):
            data = data.replace(character.encode(), f"\\u{ord(character):04x}".encode())
        return data + b"\n"

    def padded(self, data: bytes, multiple: int) -> bytes:
        if multiple == 0:
            return data
        spaces = b" " * (-len(data) % multiple)
        return data.removesuffix(b"\n") + spaces + b"\n" if data.endswith(b"\n") else data + spaces


EVENTS = StreamFormat()
OPENAI_EVENTS = StreamFormat(end=b"data: [DONE]\n\n")
