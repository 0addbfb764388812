"""From settings to a process that listens: sockets, signals, exit codes."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import logging
import os
import socket
import threading
from collections.abc import Callable, Generator, Mapping
from functools import partial
from typing import Any

import uvicorn

from outrider.errors import OutriderError
from outrider.llm import LLM
from outrider.sessions import domain_secret
from outrider.utils.garbage import freeze_gc
from outrider.utils.system import on_end_signals
from outrider_server.app import create_app
from outrider_server.http.context import log_sharing
from outrider_server.http.listening import BACKLOG, SURPLUS, IdleConnections, address, connection_limit, listen, tls
from outrider_server.http.logs import configure, flush_log
from outrider_server.http.protocol import Guard, guarded_protocol
from outrider_server.model_specs import usual_name
from outrider_server.models import Models
from outrider_server.service import Service
from outrider_server.settings import ServerSettings

logger = logging.getLogger(__name__)

EXIT_DEAD_ENGINE = 3
LAST_GRACE = 10.0  # seconds after which a server that was told to stop is ended by force
DEATH_NOTICE = 2.0  # seconds in which a server whose engine died still answers: on /health, and to waiting requests


def serve(settings: ServerSettings, model: str, **options: Any) -> int:
    """Serve until told to stop; the process's exit code.

    Listens at once and answers 503 until the model is loaded; those of ``settings.models`` are loaded when they are
    asked for. SIGTERM or SIGINT: no new connections, running requests are finished; a second one ends everything at
    once.

    Raises OutriderError if the settings are wrong, the address is taken or the model cannot be loaded.
    """
    configure(settings)
    listener = listen(settings)
    loaders = {spec.name: partial(LLM, spec.model, **{**options, **spec.options}) for spec in settings.models}
    models = Models.on_demand(settings, loaders) if loaders else Models.of(Service(settings, usual_name(model)))
    keep_domains(models, options)
    server = UvicornServer(models, listener)
    loading = threading.Thread(target=server.load, args=(model, options), name="outrider-load", daemon=True)
    if loaders:
        freeze_gc()  # before any model is, as that may be unloaded
    else:
        loading.start()
    return run(server, listener, loading.is_alive)


def keep_domains(models: Models, options: Mapping[str, Any]) -> None:
    """Name the callers' domains as before a restart, where ``options`` say that sessions outlive one."""
    if (folder := options.get("session_dir")) is not None:
        models.callers.keep(domain_secret(str(folder)))


def run(server: UvicornServer, listener: socket.socket, is_loading: Callable[[], bool] = lambda: False) -> int:
    """Serve with ``server`` until it stops; the process's exit code. Raises OutriderError if that is why it stops."""
    models, settings = server.models, server.models.settings
    try:
        asyncio.run(server.serve([listener]))
    finally:
        flush_log()
        if settings.uds is not None:
            with contextlib.suppress(OSError):
                os.unlink(settings.uds)
    if isinstance(server.failure, OutriderError):
        raise server.failure
    if server.failure is not None:
        logger.critical("the server cannot go on", exc_info=server.failure)
    code = EXIT_DEAD_ENGINE if server.failure is not None or models.state == "dead" else 0
    was_cut_short = server.force_exit or is_loading()
    if was_cut_short or models.is_changing:
        flush_log()
        os._exit(code or int(was_cut_short))  # the threads that are cut off here hold nothing that must be put away
    models.close()
    faulthandler.cancel_dump_traceback_later()
    return code


class UvicornServer(uvicorn.Server):
    """uvicorn's, with exit codes of our own, loading beside serving, and one rule for both signals."""

    def __init__(self, models: Models, listener: socket.socket) -> None:
        self.models = models
        self.failure: BaseException | None = None
        settings = models.settings
        self._address = address(settings, listener)
        self._limit = connection_limit(settings.limits.max_connections)
        self._protocol = guarded_protocol(Guard(settings.limits, models.metrics, self._limit, IdleConnections()))
        self._loop: asyncio.AbstractEventLoop | None = None
        super().__init__(
            uvicorn.Config(
                create_app(models),
                http=self._protocol,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=round(settings.drain_timeout + 2 * DEATH_NOTICE),
                h11_max_incomplete_event_size=settings.limits.max_header_bytes,
                ssl_certfile=settings.ssl_certfile,
                ssl_keyfile=settings.ssl_keyfile,
            )
        )
        context = tls(settings)  # its errors are ours to word
        self.config.load()
        self.config.ssl = context

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self.servers = [await self._server(listener) for listener in sockets or []]
        self.started = True
        logger.info("listening on %s", self._address)
        if self.models.pool is not None:
            logger.info("ready: %s, each loaded when asked for", ", ".join(self.models.pool.models))
        log_sharing(self.models.settings)
        if self.failure is not None or self.models.state == "dead":
            self.should_exit = True

    async def _server(self, listener: socket.socket) -> asyncio.Server:
        """Accept a few connections at a time, so that those beyond the limit are told so and closed before others."""
        protocol = partial(self._protocol, self.config, self.server_state, {})
        tls: dict[str, Any] = {}
        if self.config.ssl is not None:
            seconds = self.models.settings.limits.header_timeout
            tls = {"ssl": self.config.ssl, "ssl_handshake_timeout": seconds, "ssl_shutdown_timeout": seconds}
        server = await asyncio.get_running_loop().create_server(protocol, sock=listener, backlog=SURPLUS, **tls)
        listener.listen(BACKLOG)  # asyncio's backlog is both: connections accepted at once, and those that may wait
        return server

    def load(self, model: str, options: dict[str, Any]) -> None:
        """On a thread of its own: load the model, then serve it; or end the server."""
        try:
            llm = LLM(model, **options)
            freeze_gc()
            self.models.services[0].attach(llm, on_death=self.engine_died)
        except BaseException as error:  # noqa: BLE001  told by the main thread, as its exit
            self.failure = error
            self.should_exit = True
        else:
            logger.info("ready: %s on %s", ", ".join(self.models.services[0].model_names), self._address)

    def engine_died(self) -> None:
        """Say so for a while, then stop."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.call_later, DEATH_NOTICE, self._stop)

    def _stop(self) -> None:
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Both signals stop the server; unlike uvicorn's, they are not raised again once it has stopped."""
        if threading.current_thread() is threading.main_thread():
            on_end_signals(asyncio.get_running_loop(), self.handle_signal)
        yield

    def handle_signal(self) -> None:
        """Stop when running requests have finished; on a second signal, at once."""
        if self.should_exit:
            logger.warning("stopping at once")
            self.force_exit = True
            return
        logger.info("finishing %d sequences before stopping; a second signal stops at once", self.models.sequences)
        self.models.drain()
        self.should_exit = True
        self._end_by_force_later()
        asyncio.get_running_loop().call_later(self.models.settings.drain_timeout, self._drain_timeout)

    def _end_by_force_later(self) -> None:
        """Show the stacks of a hanging process on stderr and end it, by a thread that needs no lock of Python's."""
        with contextlib.suppress(OSError, ValueError, AttributeError):  # there is no stderr to write to
            seconds = self.models.settings.drain_timeout + 2 * DEATH_NOTICE + LAST_GRACE
            faulthandler.dump_traceback_later(seconds, exit=True)

    def _drain_timeout(self) -> None:
        """Tell waiting requests that the engine has stopped."""
        logger.warning("time is up for %d sequences", self.models.sequences)
        self.models.give_up()
        threading.Thread(target=self.models.close, daemon=True).start()
