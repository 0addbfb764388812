"""A server of the golden model, in a thread of the tests' own process."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from pathlib import Path

from outrider.errors import OutriderError
from outrider_golden.model import GoldenLLM
from outrider_server.http.listening import listen
from outrider_server.models import Models
from outrider_server.run import UvicornServer
from outrider_server.service import Service
from outrider_server.settings import ServerSettings

__all__ = ["Served"]

_PATIENCE_S = 60.0


class Served:
    """Listens on a free port of this machine until ``close``."""

    def __init__(self, llm: GoldenLLM, name: str, record: Path) -> None:
        """Args:
            llm: closed with the server.
            name: of the model, for clients.
            record: the file that requests and answers are appended to.

        Raises:
            OutriderError: the server does not start.
        """  # fmt: skip
        self.llm = llm
        settings = ServerSettings(
            port=0, drain_timeout=1.0, record=str(record), served_model_names=(name, "*"), playground=False
        )
        self._service = service = Service(settings, name)
        listener = listen(settings)
        self._server = UvicornServer(Models.of(service), listener)
        service.attach(llm, on_death=self._server.engine_died)
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(listener)), daemon=True)
        self._thread.start()
        patience = time.monotonic() + _PATIENCE_S
        while not self._server.started:
            if time.monotonic() > patience or not self._thread.is_alive():
                raise OutriderError("the server of the golden model does not start: see the log above")
            time.sleep(0.01)

    async def _serve(self, listener: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        await self._server.serve([listener])

    def settle(self) -> None:
        """Wait until all answers are recorded: the last part of a stream is sent before."""
        patience = time.monotonic() + _PATIENCE_S
        while self._service.sequences and time.monotonic() < patience:
            time.sleep(0.002)
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self._loop).result(_PATIENCE_S)

    def close(self) -> None:
        """Stop, and release the model."""
        self._server.should_exit = self._server.force_exit = True
        self._thread.join(_PATIENCE_S)
        self._server.models.close()
