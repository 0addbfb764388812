"""The log: lines for people or JSON for machines, on stderr; prompts only if asked for."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Sequence
from datetime import UTC, datetime

from outrider.engine.request import Request
from outrider.server.settings import ServerSettings

logger = logging.getLogger(__name__)

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


def log_generation(name: str, requests: Sequence[Request], *, prompts: bool) -> None:
    """One line for all sequences of a request that has ended; with their texts only if ``prompts``."""
    stats = [request.stats for request in requests]
    more: dict[str, object] = {
        "prompt_tokens": sum(s.prompt_tokens for s in stats),
        "cached_tokens": sum(s.cached_prompt_tokens for s in stats),
        "completion_tokens": sum(s.completion_tokens for s in stats),
        "draft_tokens": sum(s.num_draft_tokens for s in stats),
        "accepted_tokens": sum(s.num_accepted_draft_tokens for s in stats),
        "finish_reason": ",".join(request.finish_reason or "abort" for request in requests),
    }
    if prompts:
        more |= {"prompt": [list(r.prompt) for r in requests], "output": [r.text for r in requests]}
    logger.info("generated %s", name, extra=more)
