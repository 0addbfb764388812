"""Errors as Ollama writes them."""

from __future__ import annotations

from typing import Any

from outrider.server.http.errors import ApiError


def ollama_error(error: ApiError) -> dict[str, Any]:
    """``{"error": message}``. The message names the field at fault."""
    return {"error": error.short_message}
