"""Errors and streams as Ollama writes them."""

from __future__ import annotations

from typing import Any

from outrider_server.http.errors import ApiError
from outrider_server.http.stream import JsonLines


def ollama_error(error: ApiError) -> dict[str, Any]:
    """``{"error": message}``. The message names the field at fault."""
    return {"error": error.short_message}


LINES = JsonLines(media_type="application/x-ndjson", ping=b" ", failure=ollama_error)
