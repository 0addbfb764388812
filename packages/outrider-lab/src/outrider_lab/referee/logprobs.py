"""Tokens and log-probabilities of a completion's choice, in the forms that servers give them.

OpenAI's completions have ``tokens`` and ``top_logprobs`` (a table for each token); llama.cpp's server answers
completions in the form of chats, ``content``. A server need not give any.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["best_two", "token_ids", "token_texts"]


def _content(choice: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The entries of the chats' form; empty for another form."""
    logprobs = choice.get("logprobs")
    content = logprobs.get("content") if isinstance(logprobs, Mapping) else None
    return [entry for entry in content if isinstance(entry, Mapping)] if isinstance(content, list) else []


def token_texts(choice: Mapping[str, Any]) -> tuple[str, ...]:
    """The tokens' texts; empty if the server gives none."""
    logprobs = choice.get("logprobs")
    tokens = logprobs.get("tokens") if isinstance(logprobs, Mapping) else None
    if isinstance(tokens, list):
        return tuple(str(token) for token in tokens)
    return tuple(str(entry.get("token", "")) for entry in _content(choice))


def token_ids(choice: Mapping[str, Any]) -> tuple[int, ...]:
    """The tokens' ids; empty if the server gives none."""
    ids = choice.get("token_ids") or [entry.get("id") for entry in _content(choice)]
    return tuple(ids) if isinstance(ids, list) and all(isinstance(each, int) for each in ids) else ()


def best_two(choice: Mapping[str, Any]) -> list[tuple[float, float] | None]:
    """For each token, the two best log-probabilities at its place; None where the server gives fewer."""
    logprobs = choice.get("logprobs")
    tops = logprobs.get("top_logprobs") if isinstance(logprobs, Mapping) else None
    rows = [list(top.values()) if isinstance(top, Mapping) else [] for top in tops] if isinstance(tops, list) else [
        [each.get("logprob") for each in entry.get("top_logprobs") or ()] for entry in _content(choice)
    ]  # fmt: skip
    ordered = [sorted((float(x) for x in row if isinstance(x, int | float)), reverse=True) for row in rows]
    return [(row[0], row[1]) if len(row) > 1 else None for row in ordered]
