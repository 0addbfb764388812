"""HTTP/1.1 as uvicorn speaks it, for clients that are slow, gone or half gone; refusals are in JSON."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from dataclasses import dataclass
from typing import Any, Literal

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from outrider_server.http.errors import ApiError, to_json, unavailable
from outrider_server.http.listening import IdleConnections
from outrider_server.http.metrics import ServerMetrics
from outrider_server.http.strict_h11 import StrictConnection
from outrider_server.settings import Limits

logger = logging.getLogger("outrider_server.access")

FIRST_LOOK, LAST_LOOK = 0.005, 0.5  # polling interval for half-closed clients, in seconds


@dataclass(frozen=True)
class Guard:
    """State that all connections of a server share."""

    limits: Limits
    metrics: ServerMetrics
    max_open: int
    """Connections that may be open: ``limits.max_connections``, or fewer where descriptors are few."""
    idle: IdleConnections


def guarded_protocol(guard: Guard) -> type[GuardedProtocol]:
    """A protocol class for ``uvicorn.Config(http=...)``."""

    class Bound(GuardedProtocol):
        _guard = guard

    return Bound


class GuardedProtocol(H11Protocol):
    """One connection.

    * A connection that waits for its client has a deadline, and is closed first when there are too many: for a head,
      a body, the unread rest of a body, the next request. A client that misses its deadline gets an error, if one
      can still be sent, and is disconnected.
    * Reading goes on while a request is answered, so that its end is noticed; requests sent ahead are bounded.
    * A client that has only stopped sending gets its answer.
    * A reader who takes nothing is disconnected.
    """

    _guard: Guard
    _awaits: Literal["head", "upload", "body", "next"] | None = None
    _deadline: asyncio.TimerHandle | None = None
    _reader_deadline: asyncio.TimerHandle | None = None
    _eof = False

    # -- the transport's events ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.conn = StrictConnection(self._guard.limits.max_header_bytes)
        transport.set_write_buffer_limits(high=1)  # so that we are told of every byte that is not taken at once
        if len(self.connections) > self._guard.max_open and not self._guard.idle.disconnect_one():
            self._refuse(unavailable("too many connections are open: try again", 1, "too_many_connections"))
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._await(None)
        self._stop_watching_reader()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        state = self.conn.their_state
        if state in (h11.MUST_CLOSE, h11.CLOSED, h11.ERROR):
            return  # after the last request that there can be
        if self._answering and state is not h11.SEND_BODY and not self._has_room_for(data):
            self.cycle.keep_alive = False  # the dropped requests cannot be answered
            return
        super().data_received(data)

    def _has_room_for(self, data: bytes) -> bool:
        """Whether requests that are sent ahead are still small enough together to be kept."""
        return len(self.conn.trailing_data[0]) + len(data) <= self._guard.limits.max_header_bytes

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keep the connection for an answer that is under way.

        A client that has only stopped sending cannot be told from one that has gone, until it is sent something: an
        interim response, which clients of HTTP/1.1 skip and a closed socket refuses (RFC 9110, 15.2).
        """
        if not self._answering or self.cycle.more_body or self.scheme == "https":  # asyncio's TLS knows no half
            return False
        self._eof = True
        if self.conn.our_state is h11.SEND_RESPONSE and self.scope["http_version"] != "1.0":
            self.transport.write(self.conn.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")
        self._look_for_client(FIRST_LOOK)
        return True

    def _look_for_client(self, seconds: float) -> None:
        if self.transport.is_closing():
            return
        if self.transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.transport.abort()
        else:
            self.loop.call_later(seconds, self._look_for_client, min(2 * seconds, LAST_LOOK))

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self._stop_watching_reader()
        super().resume_writing()

    def _watch_reader(self, unread: int) -> None:
        seconds = self._guard.limits.write_timeout
        self._reader_deadline = self.loop.call_later(seconds, self._reader_is_slow, unread)

    def _stop_watching_reader(self) -> None:
        if self._reader_deadline is not None:
            self._reader_deadline.cancel()
            self._reader_deadline = None

    def _reader_is_slow(self, before: int) -> None:
        unread = self.transport.get_write_buffer_size()
        if unread < before:
            self._watch_reader(unread)
            return
        logger.warning("a reader took nothing for %g s: its connection is cut", self._guard.limits.write_timeout)
        self._guard.metrics.dropped.inc()
        self.transport.abort()

    # -- requests --------------------------------------------------------------------------------------------------

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def _body_may_not_come(self) -> bool:
        """Whether the client asked before sending a body and has its answer: the next bytes may be a body or a head."""
        return self.conn.their_state is h11.SEND_BODY and any(name == b"expect" for name, _ in self.headers)

    def handle_events(self) -> None:
        super().handle_events()
        if self.conn.their_state is not h11.SEND_BODY:
            self.flow.resume_reading()  # uvicorn pauses at a request that is sent ahead, and would see no end
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._unset_keepalive_if_required()  # uvicorn's deadline, which a single byte can lift
        if not self._answering and (self._eof or self._body_may_not_come):
            self.transport.close()
        self._watch()

    def _watch(self) -> None:
        """Set one deadline for the client's next data; it starts when the expected kind of data changes."""
        state = self.conn.their_state
        if self._answering and self.cycle.more_body:
            self._await("upload")
        elif self._answering or self.transport.is_closing() or state not in (h11.IDLE, h11.SEND_BODY):
            self._await(None)
        elif state is h11.SEND_BODY:
            self._await("body")
        elif self.cycle is None or self.conn.trailing_data[0]:
            self._await("head")
        else:
            self._await("next")

    def _await(self, what: Literal["head", "upload", "body", "next"] | None) -> None:
        if what == self._awaits:
            return
        if self._deadline is not None:
            self._deadline.cancel()
        self._awaits, self._deadline = what, None
        if what is None:
            self._guard.idle.remove(self.transport)
            return
        self._guard.idle.add(self.transport, self.client[0] if self.client else "")
        if what == "upload":
            return  # the endpoint that reads the body has a deadline of its own, and an answer
        limits = self._guard.limits
        seconds = {
            "head": limits.header_timeout,
            "body": limits.body_timeout,
            "next": limits.keep_alive_timeout,
        }
        self._deadline = self.loop.call_later(seconds[what], self._too_slow)

    def _too_slow(self) -> None:
        if self._awaits == "head":
            self._refuse(ApiError(408, "the request head did not arrive in time"))
        else:
            self.transport.close()

    # -- refusals --------------------------------------------------------------------------------------------------

    def send_400_response(self, msg: str) -> None:
        error = sys.exception()
        hint = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
        if hint == 413:
            self._refuse(ApiError(413, f"{error}: send larger ones, or a Content-Length", code="body_too_large"))
        elif hint == 431:  # the head's end is not there yet, and h11 keeps no more of it
            self._refuse(ApiError(431, "the headers are too large: send less", code="headers_too_large"))
        else:
            self._refuse(ApiError(400, "this is not a valid HTTP request"))

    def _refuse(self, error: ApiError) -> None:
        """Answer with ``error`` if an answer can still begin, and disconnect."""
        if self.transport.is_closing():
            return
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._write(error)
        if self._answering:  # by the application, which must not answer as well
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()
        self._await(None)

    def _write(self, error: ApiError) -> None:
        body = to_json(error.body())
        headers: list[tuple[str, Any]] = [
            ("content-type", "application/json"),
            ("content-length", str(len(body))),
            ("connection", "close"),
            *error.headers.items(),
        ]
        shown = b"" if self._answering and self.scope["method"] == "HEAD" else body
        for event in (h11.Response(status_code=error.status, headers=headers), h11.Data(shown), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self._guard.metrics.http.labels("other", "other", str(error.status)).inc()
        client = self.client[0] if self.client else ""
        logger.info("connection refused %d", error.status, extra={"status": error.status, "client": client})
