"""A replica as a process: ``python -m outrider_fleet.replica.main``, which reads its options on stdin.

It imports its modules before it reads its options, so that a spare one is ready at once. It ends when its stdin
does, however its parent ended.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import threading
from typing import Any

from outrider.errors import OutriderError
from outrider.llm import LLM
from outrider.utils.garbage import freeze_gc
from outrider_fleet import tracing
from outrider_fleet.replica.engine_host import EngineHost
from outrider_fleet.replica.sockets import SocketHost
from outrider_server.http.logs import configure, flush_log
from outrider_server.settings import ServerSettings

EXIT_DEAD_ENGINE = 3


class _Named(logging.Filter):
    """Every line of the log says which replica wrote it."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._replica = name

    def filter(self, record: logging.LogRecord) -> bool:
        record.replica = self._replica
        return True


def main() -> int:
    """Serve until stdin ends; the exit code is that of ``outrider serve``."""
    for number in (signal.SIGINT, signal.SIGTERM):  # they are for the ingress, which ends us when all is answered;
        signal.signal(number, signal.SIG_IGN)  # supervisors send them to all processes of a service
    line = sys.stdin.buffer.readline()
    if not line:
        return 0
    given: dict[str, Any] = json.loads(line)
    configure(ServerSettings(log_level=given["log_level"], log_format=given["log_format"]))
    for name in ("outrider", "uvicorn", "asyncio"):
        for handler in logging.getLogger(name).handlers:
            handler.addFilter(_Named(given["name"]))
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    try:
        if given["traces"]:
            tracing.enable(f"replica {given['name']}")
        asyncio.run(_serve(given))
    except OutriderError as error:
        flush_log()
        print(f"outrider: replica {given['name']}: {error}", file=sys.stderr)
        return error.exit_code
    return EXIT_DEAD_ENGINE


async def _serve(given: dict[str, Any]) -> None:
    """Until the engine has died."""
    sockets = SocketHost(given["path"], given["token"])
    server = await sockets.listen()
    host = await asyncio.to_thread(_load, given)
    sockets.host.set_result(host)
    try:
        while host.alive:
            await asyncio.sleep(0.2)
    finally:
        server.close()


def _load(given: dict[str, Any]) -> EngineHost:
    host = EngineHost(LLM(given["model"], **given["options"]), given["name"], shares=given["shares"])
    freeze_gc()
    return host


def _end_with_stdin() -> None:
    while sys.stdin.buffer.read(1 << 16):
        pass
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
