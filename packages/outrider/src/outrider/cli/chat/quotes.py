"""Three quotes around a message or a command's value of several lines."""

from __future__ import annotations

QUOTES = '"""'


def is_open(text: str) -> bool:
    """Whether ``text``, a message or a command's value, opened three quotes and has not closed them."""
    begun = text.lstrip()
    return begun.startswith((QUOTES, "/")) and begun.count(QUOTES) % 2 == 1


def unquoted(text: str) -> str:
    """``text`` without the quotes around it."""
    for quotes in (QUOTES, '"', "'"):
        if len(text) >= 2 * len(quotes) and text.startswith(quotes) and text.endswith(quotes):
            return text[len(quotes) : -len(quotes)].strip("\n")
    return text


def without_quotes(text: str) -> str:
    """A message without the quotes that held its lines together."""
    stripped = text.strip()
    return unquoted(stripped) if stripped.startswith(QUOTES) else text
