"""The log: lines for people or JSON for machines, on stderr; prompts only if asked for."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from outrider.server.settings import ServerSettings

FIELDS = (
    "request_id",
    "client",
    "seconds",
    "prompt_tokens",
    "completion_tokens",
    "cached_tokens",
    "finish_reason",
    "draft_tokens",
    "accepted_tokens",
    "prompt",
    "output",
)
"""What records carry beside their message."""


class TextFormatter(logging.Formatter):
    """``2026-01-31 12:00:00 INFO POST /v1/completions 200 seconds=0.21``, always one line."""

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%d %H:%M:%S")
        more = "".join(f" {key}={value!r}" for key, value in _fields(record).items())
        line = f"{when} {record.levelname} {_one_line(record.getMessage())}{more}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


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


def configure(settings: ServerSettings) -> None:
    """Send everything of Outrider and uvicorn's warnings to stderr. A full disk behind it stops no request."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if settings.log_format == "json" else TextFormatter())
    logging.raiseExceptions = False  # or a stderr that cannot be written to would be complained about on stderr
    own = logging.getLogger("outrider")
    own.handlers, own.propagate = [handler], False
    own.setLevel(settings.log_level.upper())
    uvicorn = logging.getLogger("uvicorn")
    uvicorn.handlers, uvicorn.propagate = [handler], False
    uvicorn.setLevel("WARNING")
