"""The calls of llama-cpp-python 0.3.36 and the dictionaries it answered with, recorded on SmolLM2 135M."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_RECORDED: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text())

PARAMETERS: dict[str, str] = _RECORDED["parameters"]
"""Parameters of each method with their defaults, but for ``self``."""
SHAPES: dict[str, Any] = _RECORDED["shapes"]
"""Keys and types; of lists, the different ones among their items. ``*``: any key."""


def shape(value: Any) -> Any:
    """A value as ``SHAPES`` has it."""
    if isinstance(value, dict):
        return {key: shape(_by_token(each) if key == "top_logprobs" else each) for key, each in value.items()}
    if isinstance(value, list):
        found: list[Any] = []
        for each in map(shape, value):
            if each not in found:
                found.append(each)
        return found
    return "None" if value is None else type(value).__name__


def _by_token(rows: list[Any]) -> list[Any]:
    """Log-probabilities by token under the key ``*``; those of chats, which have keys of their own, as they are."""
    return [row if row is None or "logprob" in row else {"*": max(row.values())} for row in rows]
