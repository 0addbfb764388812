"""Streams: how chunks are written (server-sent events or lines of JSON), and how they are sent to slow clients."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from outrider_server.http.context import wait_for_disconnect
from outrider_server.http.errors import ApiError, as_api_error, to_json
from outrider_server.settings import ServerSettings

PATIENCE = 5.0  # seconds to wait for a first token: until then, a failure can still be a proper status
PING = 15.0  # seconds of silence after which a comment is sent, so that a client that has gone is noticed
OBFUSCATION = 64  # bytes that a client's include_obfuscation pads to


class Frame(bytes):
    """A chunk that has been written already, as it is sent."""


Chunk = dict[str, Any] | bytes
"""An event's JSON, or the bytes of it where they have been written elsewhere."""


@dataclass(frozen=True)
class StreamFormat:
    """Server-sent events."""

    end: bytes = b""
    """The last bytes of a stream."""
    named: bool = False
    """Whether an event has the ``type`` of its JSON as its name."""
    failure: Callable[[ApiError], dict[str, Any]] = ApiError.body
    """The chunk that tells of a failure after the first token."""
    media_type: str = "text/event-stream"
    ping: bytes = b": \n\n"
    """Bytes that readers skip, sent during silence."""

    def event(self, chunk: Chunk) -> bytes:
        """One chunk, as it is sent."""
        if isinstance(chunk, Frame):
            return chunk
        data = b"data: " + (chunk if isinstance(chunk, bytes) else to_json(chunk)) + b"\n\n"
        if self.named and isinstance(chunk, dict):
            return b"event: " + str(chunk["type"]).encode() + b"\n" + data
        return data

    def padded(self, data: bytes, multiple: int) -> bytes:
        """``data``, padded with a comment to a ``multiple`` of bytes (0: unchanged)."""
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


class EventStream(Response):
    """Sends chunks as they come: those of one engine step in one event, in order.

    * A failure before the first token is an ordinary error response; later ones are an event of their own.
    * When the client goes, ``chunks`` is closed at once.
    * ``stream_interval``: chunks are sent at fixed times only. ``stream_padding``: the size of every send
      is a multiple of this number of bytes, padded with bytes that readers skip. Together they
      hide from an observer of the line how many tokens each step gave (the rate and the total remain).
    """

    def __init__(
        self,
        chunks: AsyncGenerator[Chunk],
        settings: ServerSettings,
        form: StreamFormat,
        *,
        obfuscate: bool = False,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        """``form``: how chunks are written. ``on_end`` is called when the stream is over, also if it never began."""
        self.media_type = form.media_type
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._chunks = chunks
        self._interval = settings.stream_interval
        self._padding = settings.stream_padding or (OBFUSCATION if obfuscate else 0)
        self._form = form
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.ensure_future(self._send_all(scope, receive, send))
        disconnect = asyncio.ensure_future(wait_for_disconnect(receive))
        try:
            await asyncio.wait({sending, disconnect}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, disconnect):
                task.cancel()
            await asyncio.wait({sending, disconnect})
            self._on_end()
        if not sending.cancelled():
            sending.result()

    async def _send_all(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with contextlib.aclosing(self._chunks):
            first = self._upcoming = asyncio.ensure_future(anext(self._chunks))
            try:
                await asyncio.wait({first}, timeout=PATIENCE)
                if first.done() and (error := first.exception()) is not None:
                    await as_api_error(error).response()(scope, receive, send)
                    return
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                async for data in self._timed():
                    await send({"type": "http.response.body", "body": data, "more_body": True})
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            finally:  # a running step must end before the chunks can be closed
                self._upcoming.cancel()
                await asyncio.wait({self._upcoming})

    async def _timed(self) -> AsyncIterator[bytes]:
        """The bytes of each send, when it is due."""
        loop = asyncio.get_running_loop()
        rhythm = self._interval or PING
        due, gathered, more = loop.time() + rhythm, b"", True
        while more:
            await asyncio.wait({self._upcoming}, timeout=max(0.0, due - loop.time()))
            if self._upcoming.done():
                frame, more = self._frame(self._upcoming)
                gathered += frame
                if more:
                    self._upcoming = asyncio.ensure_future(anext(self._chunks))
                if self._interval and more and loop.time() < due:
                    continue
            if self._interval:
                await asyncio.sleep(max(0.0, due - loop.time()))
            if data := self._form.padded(gathered or (self._form.ping if more else b""), self._padding):
                yield data
            gathered, due = b"", (due if self._interval else loop.time()) + rhythm

    def _frame(self, upcoming: asyncio.Future[Chunk]) -> tuple[bytes, bool]:
        """A finished chunk as an event, and whether more can follow."""
        try:
            return self._form.event(upcoming.result()), True
        except StopAsyncIteration:
            return self._form.end, False
        except Exception as error:  # noqa: BLE001  every failure is told in the stream, and ends it
            return self._form.event(self._form.failure(as_api_error(error))) + self._form.end, False
