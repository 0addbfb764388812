"""HTTP/1.1 as uvicorn speaks it, with a deadline for the head of a request, and refusals in JSON."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from outrider.server.http.errors import ApiError, to_json, unavailable


def guarded_protocol(header_timeout: float, max_connections: int) -> type[H11Protocol]:
    """A protocol class for ``uvicorn.Config(http=...)``."""

    class Guarded(H11Protocol):
        """A client that sends its request head too slowly, or no HTTP, gets one answer and is disconnected.

        It also puts the transport into ``scope["state"]``, so that a reader who takes nothing can be cut off.
        """

        _deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.app_state = {**self.app_state, "transport": transport}
            if len(self.connections) > max_connections:
                self._answer(unavailable("too many connections are open: try again", 1, "too_many_connections"))
            else:
                self._expect_head()

        def connection_lost(self, exc: Exception | None) -> None:
            self._head_is_here()
            super().connection_lost(exc)

        def handle_events(self) -> None:
            super().handle_events()
            if self.conn.their_state is h11.IDLE:
                if self.conn.trailing_data[0] and self._deadline is None:  # part of another head
                    self._expect_head()
            else:
                self._head_is_here()

        def _expect_head(self) -> None:
            self._deadline = self.loop.call_later(header_timeout, self._too_slow)

        def _head_is_here(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

        def _too_slow(self) -> None:
            self._answer(ApiError(408, "the request head did not arrive in time"))

        def send_400_response(self, msg: str) -> None:
            self._answer(ApiError(400, "this is not a valid HTTP request, or its head is too large"))

        def _answer(self, error: ApiError) -> None:
            if self.transport.is_closing():
                return
            if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                self._write(error)
            self.transport.close()

        def _write(self, error: ApiError) -> None:
            body = to_json(error.body())
            headers: list[tuple[str, Any]] = [
                ("content-type", "application/json"),
                ("content-length", str(len(body))),
                ("connection", "close"),
                *error.headers.items(),
            ]
            for event in (h11.Response(status_code=error.status, headers=headers), h11.Data(body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")

    return Guarded
