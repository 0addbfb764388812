"""Accepting connections, as many as there are file descriptors for."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
import ssl
from collections.abc import Callable
from typing import Any

from outrider_server.http.protocol import GuardedProtocol

logger = logging.getLogger(__name__)

OTHER_FILES = 32
"""Descriptors for everything but connections: the log, the loop, the listening socket, workers, files being read."""
SURPLUS = 8
"""Connections beyond the limit that are open for a moment, to be told so."""
PAUSE = 0.1  # seconds without accepting, when others have taken all descriptors


def connection_limit(wanted: int) -> int:
    """How many of the ``wanted`` connections there can be; the soft limit of open files is raised for them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = wanted + SURPLUS + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < need:
        soft = need if hard == resource.RLIM_INFINITY else min(need, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft == resource.RLIM_INFINITY or soft >= need:
        return wanted
    limit = max(1, soft - SURPLUS - OTHER_FILES)
    logger.warning(
        "open files are limited to %d, so connections to %d, not %d: raise `ulimit -n` to %d", soft, limit, wanted, need
    )
    return limit


class Acceptor:
    """What asyncio's server does, except that it never has more than ``limit`` and a few connections.

    asyncio accepts hundreds at once and knows no limit; its TLS handshakes, which no protocol hears of, may each take
    a minute. Where descriptors run out, it writes a traceback for every connection that waits.
    """

    def __init__(
        self,
        listener: socket.socket,
        protocol: Callable[[], GuardedProtocol],
        limit: int,
        *,
        ssl_context: ssl.SSLContext | None = None,
        handshake_timeout: float,
    ) -> None:
        self._listener, self._protocol, self._limit = listener, protocol, limit
        self._tls: dict[str, Any] = {}
        if ssl_context is not None:
            timeouts = {"ssl_handshake_timeout": handshake_timeout, "ssl_shutdown_timeout": handshake_timeout}
            self._tls = {"ssl": ssl_context, **timeouts}
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        listener.setblocking(False)
        self._resume()

    def close(self) -> None:
        self._closed = True
        self._loop.remove_reader(self._listener.fileno())

    async def wait_closed(self) -> None:
        """For uvicorn, which waits for connections by itself."""

    def _resume(self) -> None:
        if not self._closed:
            self._loop.add_reader(self._listener.fileno(), self._accept)

    def _pause(self) -> None:
        self._loop.remove_reader(self._listener.fileno())

    def _accept(self) -> None:
        for _ in range(SURPLUS):
            if len(self._tasks) >= self._limit + SURPLUS:
                self._pause()
                return
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                logger.error("no connection can be accepted: %s", error.strerror)
                self._pause()
                self._loop.call_later(PAUSE, self._resume)
                return
            task = self._loop.create_task(self._serve(connection))
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if len(self._tasks) >= self._limit + SURPLUS:
            self._resume()
        self._tasks.discard(task)

    async def _serve(self, connection: socket.socket) -> None:
        """From the handshake until the connection is closed."""
        connection.setblocking(False)
        try:
            _, protocol = await self._loop.connect_accepted_socket(self._protocol, connection, **self._tls)
        except OSError:  # it has gone, or does not speak TLS
            return
        await protocol.closed.wait()
