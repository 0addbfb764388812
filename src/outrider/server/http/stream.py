"""Server-sent events, for clients that may be slow or disconnect."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from outrider.server.http.errors import ApiError, as_api_error, to_json
from outrider.server.settings import ServerSettings

T = TypeVar("T")
Chunk = dict[str, Any]

DONE = b"data: [DONE]\n\n"
PATIENCE = 5.0  # seconds to wait for a first token: until then, a failure can still be a proper status
PING = 15.0  # seconds of silence after which a comment is sent, so that proxies and we notice who has gone
OBFUSCATION = 64  # bytes that a client's include_obfuscation pads to


class EventStream(Response):
    """Sends chunks as they come: those of one engine step in one event, in order, then ``[DONE]``.

    * A failure before the first token is an ordinary error response; later ones are an event with ``error``.
    * When the client goes, ``chunks`` is closed at once.
    * ``stream_interval``: what has gathered is sent at fixed times and at no others. ``stream_padding``: every send
      is a multiple of so many bytes, filled up with a comment, which readers of event streams skip. Together they
      hide from who watches the line how many tokens each step gave (their number per second, and the total, remain).
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        chunks: AsyncGenerator[Chunk],
        settings: ServerSettings,
        *,
        obfuscate: bool = False,
        done: bool = True,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        """``done``: end with ``[DONE]``. ``on_end`` is called when the stream is over, also if it never began."""
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._chunks = chunks
        self._interval = settings.stream_interval
        self._padding = settings.stream_padding or (OBFUSCATION if obfuscate else 0)
        self._end = DONE if done else b""
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
            finally:  # what still runs must have stopped before the chunks can be closed
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
            yield self._padded(gathered or b": \n\n")
            gathered, due = b"", (due if self._interval else loop.time()) + rhythm

    def _frame(self, upcoming: asyncio.Future[Chunk]) -> tuple[bytes, bool]:
        """A finished chunk as an event, and whether more can follow."""
        try:
            return _event(upcoming.result()), True
        except StopAsyncIteration:
            return self._end, False
        except Exception as error:  # noqa: BLE001  every failure is told in the stream, and ends it
            return _event(as_api_error(error).body()) + self._end, False

    def _padded(self, data: bytes) -> bytes:
        if self._padding == 0:
            return data
        short = -(len(data) + 4) % self._padding  # a comment is at least ": \n\n"
        return data + b": " + b"-" * short + b"\n\n"


def _event(chunk: Chunk) -> bytes:
    return b"data: " + to_json(chunk) + b"\n\n"


async def wait_for_disconnect(receive: Receive) -> None:
    """Wait until the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_disconnected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of ``work``, which is cancelled if the client disconnects first."""
    working = asyncio.ensure_future(work)
    disconnect = asyncio.ensure_future(wait_for_disconnect(request.receive))
    try:
        await asyncio.wait({working, disconnect}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        if not working.done():
            working.cancel()
        disconnect.cancel()
        await asyncio.wait({working, disconnect})
    if working.cancelled():
        raise ApiError(499, "the client has gone")
    return working.result()
