"""Listening sockets: where a server listens, how many connections it takes, and TLS."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import ssl
import stat

from outrider.errors import ConfigError
from outrider.utils.system import raise_open_files, take_address
from outrider_server.settings import ServerSettings

logger = logging.getLogger(__name__)

OTHER_FILES = 32
"""Descriptors for everything but connections: the log, the loop, the listening socket, workers, files being read."""
SURPLUS = 8
"""Connections beyond the limit that are open for a moment, to be told so."""
BACKLOG = 1024
"""Connections that the system keeps until they are accepted."""


def connection_limit(wanted: int) -> int:
    """How many of the ``wanted`` connections there can be; the soft limit of open files is raised for them."""
    need = wanted + SURPLUS + OTHER_FILES
    files = raise_open_files(need)
    if files == need:
        return wanted
    limit = max(1, files - SURPLUS - OTHER_FILES)
    logger.warning(
        "open files are limited to %d, so connections to %d, not %d: raise `ulimit -n` to %d",
        *(files, limit, wanted, need),
    )
    return limit


def listen(settings: ServerSettings) -> socket.socket:
    """A bound socket, or ConfigError in one line: nothing is loaded for an address that is taken."""
    if settings.uds is not None:
        return _listen_unix(settings.uds)
    where = f"{settings.host}:{settings.port}"
    try:
        family = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0][0]
        # With its protocol named, so that asyncio turns Nagle off: an answer in two writes waited 40 ms for an ACK.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        take_address(listener)
        listener.bind((settings.host, settings.port))
        listener.listen(BACKLOG)
    except (OSError, UnicodeError) as error:
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            raise ConfigError(f"{where} is in use: choose another --port, or stop what listens there") from None
        reason = error.strerror if isinstance(error, OSError) else "it is no host name"
        raise ConfigError(f"cannot listen on {where}: {reason}") from None
    return listener


def _listen_unix(path: str) -> socket.socket:
    """A socket file that only its owner can use; one that a dead server left behind is replaced."""
    if not hasattr(socket, "AF_UNIX"):
        raise ConfigError("Python has no Unix sockets on this system: leave --uds out")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if os.path.exists(path) and stat.S_ISSOCK(os.stat(path).st_mode):
            with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as probe:
                if probe.connect_ex(path) == 0:
                    raise ConfigError(f"{path} is in use: choose another --uds, or stop what listens there")
            os.unlink(path)
        before = os.umask(0o177)
        try:
            listener.bind(path)
        finally:
            os.umask(before)
        listener.listen(BACKLOG)
    except OSError as error:
        raise ConfigError(f"cannot listen on {path}: {error.strerror or error}") from None
    return listener


def address(settings: ServerSettings, listener: socket.socket) -> str:
    if settings.uds is not None:
        return f"unix:{settings.uds}"
    scheme = "http" if settings.ssl_certfile is None else "https"
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"{scheme}://{host}:{listener.getsockname()[1]}"


def tls(settings: ServerSettings) -> ssl.SSLContext | None:
    """TLS 1.2 or newer; ConfigError if certificate or key cannot be used."""
    if settings.ssl_certfile is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(settings.ssl_certfile, settings.ssl_keyfile)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"the TLS files cannot be used: {error.strerror or error}") from None
    return context


class IdleConnections:
    """Transports that wait for their client to send, by the client's address, oldest first."""

    def __init__(self) -> None:
        self._by_peer: dict[str, dict[asyncio.Transport, None]] = {}
        self._peers: dict[asyncio.Transport, str] = {}

    def add(self, transport: asyncio.Transport, peer: str) -> None:
        """Begins anew for one that waits already."""
        self.remove(transport)
        self._by_peer.setdefault(peer, {})[transport] = None
        self._peers[transport] = peer

    def remove(self, transport: asyncio.Transport) -> None:
        """Does nothing for one that does not wait."""
        peer = self._peers.pop(transport, None)
        if peer is None:
            return
        del self._by_peer[peer][transport]
        if not self._by_peer[peer]:
            del self._by_peer[peer]

    def disconnect_one(self) -> bool:
        """End the oldest connection of the client that has most of them; False if none waits."""
        if not self._by_peer:
            return False
        peer = max(self._by_peer, key=lambda peer: len(self._by_peer[peer]))
        transport = next(iter(self._by_peer[peer]))
        self.remove(transport)
        transport.close()
        return True
