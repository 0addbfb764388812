"""Upper bounds on the text of n tokens. A longer text has more tokens, and is refused without tokenizing it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import tokenizers

COMPOSED = 4  # characters that a normaliser may turn into one (Unicode Standard Annex 15)
_SAME_LENGTH = {"Prepend", "Lowercase", "ByteLevel"}


def characters_per_token(backend: tokenizers.Tokenizer, vocabulary: Iterable[str]) -> int | None:
    """The most characters of text that one token of ``vocabulary`` stands for; None if there is no bound.

    There is no bound if a run of unknown characters or of spaces becomes one token, or no token.
    """
    model, added = backend.model, backend.get_added_tokens_decoder().values()
    steps = _steps(backend.pre_tokenizer, "pretokenizers")
    byte_level = any(step["type"] == "ByteLevel" for step in steps)
    drops_text = any("Whitespace" in step["type"] or step.get("behavior") == "Removed" for step in steps)
    strips = any(token.lstrip or token.rstrip for token in added)
    is_bpe = isinstance(model, tokenizers.models.BPE)
    if not is_bpe or not (byte_level or model.byte_fallback) or drops_text or strips:
        return None
    normalizers = _steps(backend.normalizer, "normalizers")
    if any("Strip" in step["type"] for step in normalizers):
        return None
    longest = max(map(len, vocabulary), default=1)
    return longest * (1 if all(_keeps_length(step) for step in normalizers) else COMPOSED)


def _steps(part: Any, inner: str) -> list[dict[str, Any]]:
    """The steps of a part of a tokenizer, as ``tokenizer.json`` has them."""
    state = {inner: []} if part is None else json.loads(part.__getstate__())
    steps: list[dict[str, Any]] = state.get(inner, [state])
    return steps


def _keeps_length(step: dict[str, Any]) -> bool:
    if step["type"] == "Replace":
        return len(step["pattern"].get("String", "")) == len(step["content"])
    return step["type"] in _SAME_LENGTH
