"""Streams for clients that may be slow or disconnect."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from outrider_server.http.errors import ApiError, as_api_error
from outrider_server.http.stream_format import Chunk, StreamFormat
from outrider_server.settings import ServerSettings

T = TypeVar("T")
PATIENCE = 5.0  # seconds to wait for a first token: until then, a failure can still be a proper status
PING = 15.0  # seconds of silence after which a comment is sent, so that proxies and we notice who has gone
OBFUSCATION = 64  # bytes that a client's include_obfuscation pads to


class EventStream(Response):
    """Sends chunks as they come: those of one engine step in one event, in order.

    * A failure before the first token is an ordinary error response; later ones are an event of their own.
    * When the client goes, ``chunks`` is closed at once.
    * ``stream_interval``: what has gathered is sent at fixed times and at no others. ``stream_padding``: every send
      is a multiple of so many bytes, filled up with what readers skip. Together they
      hide from who watches the line how many tokens each step gave (their number per second, and the total, remain).
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
