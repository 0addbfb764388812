"""Tool calls of earlier turns as text, for chat templates that know of tools and of no calls."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from outrider_server.answer.formats import ToolFormat

__all__ = ["write_calls"]


def write_calls(messages: Sequence[dict[str, Any]], form: ToolFormat) -> None:
    """Add the calls of ``messages`` to their contents, where these are texts.

    For templates, as LFM2's, that write contents alone.
    """
    for message in messages:
        if (calls := message.get("tool_calls")) and isinstance(message["content"], str):
            named = [(call["function"]["name"], call["function"]["arguments"]) for call in calls]
            message["content"] += _written(named, form)


def _written(calls: Sequence[tuple[str, str]], form: ToolFormat) -> str:
    """Calls, each a name and JSON, as a model of this format writes them."""
    values = [(name, _value(arguments)) for name, arguments in calls]
    if form.python:
        inner = ", ".join(f"{name}({_keywords(value)})" for name, value in values)
    else:
        inner = ", ".join(json.dumps({"name": n, "arguments": value}, ensure_ascii=False) for n, value in values)
    listed = inner if form.bare and not form.python else f"[{inner}]"
    return f"{form.opening or ''}{listed}{form.closing}"


def _value(arguments: str) -> Any:
    with suppress(ValueError, RecursionError):
        return json.loads(arguments)
    return arguments


def _keywords(value: Any) -> str:
    return ", ".join(f"{key}={each!r}" for key, each in value.items()) if isinstance(value, dict) else ""
