"""The log: lines for people or JSON for machines, on stderr, without texts of callers."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from outrider.engine.request import Request
from outrider_server.http.context import REQUEST_ID
from outrider_server.settings import ServerSettings

logger = logging.getLogger(__name__)

FIELDS = (
    "replica",
    "request_id",
    "client",
    "seconds",
    "left_out",
    "prompt_tokens",
    "completion_tokens",
    "cached_tokens",
    "finish_reason",
    "draft_tokens",
    "accepted_tokens",
)
"""Attributes of log records that are written beside the message."""


class TextFormatter(logging.Formatter):
    """``2026-01-31 12:00:00 INFO POST /v1/completions 200 seconds=0.21``: one line, and a traceback's indented."""

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%d %H:%M:%S")
        more = "".join(f" {key}={value!r}" for key, value in _fields(record).items())
        line = f"{when} {record.levelname} {_one_line(record.getMessage())}{more}"
        if record.exc_info:  # indented, as its lines hold messages of exceptions, which may repeat a client's text
            line += "".join(f"\n  {_one_line(own)}" for own in self.formatException(record.exc_info).splitlines())
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry | _fields(record), default=str)


def _fields(record: logging.LogRecord) -> dict[str, object]:
    return {key: value for key in FIELDS if (value := getattr(record, key, None)) is not None}


def _one_line(text: str) -> str:
    """Without control characters, with which a client could fake lines."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


LINES, PERIOD = 20, 10.0
"""At most ``LINES`` lines from one place in the code in ``PERIOD`` seconds."""


class RateLimit(logging.Filter):
    """Passes ``LINES`` warnings, or refusals of one status, from each place in the code in ``PERIOD`` seconds.

    A stranger can cause any number of them. The next line says in ``left_out`` how many there were beside it.
    Requests that are served have a line each.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._seen: dict[tuple[str, int, int], tuple[float, int]] = {}  # when the period began, lines in it

    def filter(self, record: logging.LogRecord) -> bool:
        status = getattr(record, "status", 0)
        if record.levelno < logging.WARNING and status < 400:
            return True
        place, now = (record.pathname, record.lineno, status), self._clock()
        began, lines = self._seen.get(place, (now, 0))
        if now - began >= PERIOD:
            if lines > LINES:
                record.left_out = lines - LINES
            began, lines = now, 0
        self._seen[place] = began, lines + 1
        return lines < LINES


MAX_HELD = 4 << 20  # characters that may wait to be written; further lines are left out and counted
FLUSH_SECONDS = 1.0


class LogWriter(logging.Handler):
    """Writes to stderr on a thread of its own: a pipe that nobody empties must not stop the event loop.

    Lines go past Python's own buffer: a thread that waits with its lock would abort the interpreter's exit.
    """

    def __init__(self) -> None:
        super().__init__()
        self._write = _writer()
        self._lines: deque[str] = deque()
        self._held = self._left_out = 0
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record) + "\n"
        except Exception:  # noqa: BLE001  as every handler of the standard library does
            self.handleError(record)
            return
        with self._changed:
            if self._held + len(line) > MAX_HELD:
                self._left_out += 1
                return
            self._lines.append(line)
            self._held += len(line)
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="outrider-log", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def flush(self) -> None:
        """Wait until all lines are written, at most ``FLUSH_SECONDS``."""
        end = time.monotonic() + FLUSH_SECONDS
        with self._changed:
            while self._held and (left := end - time.monotonic()) > 0:
                self._changed.wait(left)

    def _serve(self) -> None:
        while True:
            with self._changed:
                while not self._lines:
                    self._changed.wait()
                line = self._lines.popleft()
                left_out, self._left_out = self._left_out, 0
            with contextlib.suppress(OSError, ValueError):  # a full disk, or no reader any more
                self._write(line)
                if left_out:
                    self._write(f"{left_out} lines were left out here: whoever reads the log was too slow\n")
            with self._changed:
                self._held -= len(line)
                self._changed.notify_all()


def _writer() -> Callable[[str], object]:
    """A function that writes a text to stderr, be it a file, an object of Python or nothing."""
    try:
        number = sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):  # there is none, or it is no file
        return lambda text: sys.stderr and sys.stderr.write(text)

    def write(text: str) -> None:
        data = text.encode(errors="backslashreplace")
        while data:
            data = data[os.write(number, data) :]

    return write


DISTRIBUTIONS = (
    "outrider",
    *("outrider_server", "outrider_torch", "outrider_transformers", "outrider_drafters", "outrider_train"),
    *("outrider_lab", "outrider_multimodal", "outrider_fleet", "outrider_llama", "outrider_golden"),
)
"""Packages whose modules log, each under its own name."""


def configure(settings: ServerSettings) -> None:
    """Send Outrider's log, and errors of uvicorn and asyncio, to stderr.

    Neither a full disk behind it nor a reader who does not read stops a request.
    """
    _open_standard_files()
    handler = LogWriter()
    handler.setFormatter(JsonFormatter() if settings.log_format == "json" else TextFormatter())
    handler.addFilter(RateLimit())
    logging.raiseExceptions = False  # or a stderr that cannot be written to would be complained about on stderr
    levels = dict.fromkeys(DISTRIBUTIONS, settings.log_level.upper()) | {"uvicorn": "ERROR", "asyncio": "WARNING"}
    for name, level in levels.items():  # uvicorn's warnings are about requests that we refuse and log ourselves
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)


def flush_log() -> None:
    """Wait until all lines are written, before other text goes to stderr or the process ends."""
    for handler in logging.getLogger("outrider").handlers:
        handler.flush()


def _open_standard_files() -> None:
    """Open closed standard files: a connection would get the number of one, and the text that is written there."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free


def log_generation(name: str, requests: Sequence[Request]) -> None:
    """One line for all sequences of a request that has ended, without their texts."""
    stats = [request.stats for request in requests]
    more: dict[str, object] = {
        "request_id": REQUEST_ID.get() or None,
        "prompt_tokens": sum(s.prompt_tokens for s in stats),
        "cached_tokens": sum(s.cached_prompt_tokens for s in stats),
        "completion_tokens": sum(s.completion_tokens for s in stats),
        "draft_tokens": sum(s.num_draft_tokens for s in stats),
        "accepted_tokens": sum(s.num_accepted_draft_tokens for s in stats),
        "finish_reason": ",".join(request.finish_reason or "abort" for request in requests),
    }
    logger.info("generated %s", name, extra=more)
