"""Upper bounds on the text of n tokens. A longer text has more tokens, and is refused without tokenizing it."""

from __future__ import annotations

import json
from typing import Any

import tokenizers

COMPOSED = 4  # characters that a normaliser may turn into one (Unicode Standard Annex 15)
_SAME_LENGTH = {"Prepend", "Lowercase", "ByteLevel"}


def characters_per_token(backend: tokenizers.Tokenizer) -> int | None:
    """The most characters of text that one token stands for; None if there is no bound.

    There is no bound if a run of unknown characters or of spaces becomes one token, or no token.
    """
    state = json.loads(backend.to_str())
    model, added = state["model"], state["added_tokens"]
    steps = _steps(state["pre_tokenizer"], "pretokenizers")
    byte_level = any(step["type"] == "ByteLevel" for step in steps)
    drops_text = any("Whitespace" in step["type"] or step.get("behavior") == "Removed" for step in steps)
    strips = any(token["lstrip"] or token["rstrip"] for token in added)
    if model["type"] != "BPE" or not (byte_level or model.get("byte_fallback")) or drops_text or strips:
        return None
    normalizers = _steps(state["normalizer"], "normalizers")
    if any("Strip" in step["type"] for step in normalizers):
        return None
    longest = max((len(token) for token in backend.get_vocab(with_added_tokens=True)), default=1)
    return longest * (1 if all(_keeps_length(step) for step in normalizers) else COMPOSED)


def _steps(part: dict[str, Any] | None, inner: str) -> list[dict[str, Any]]:
    return [] if part is None else part.get(inner, [part])


def _keeps_length(step: dict[str, Any]) -> bool:
    if step["type"] == "Replace":
        return len(step["pattern"].get("String", "")) == len(step["content"])
    return step["type"] in _SAME_LENGTH
