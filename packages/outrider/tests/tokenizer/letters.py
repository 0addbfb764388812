"""Tokenizers for table models and tiny ones: a token is a letter."""

from __future__ import annotations

from collections.abc import Sequence

import tokenizers

from outrider.tokenizer.tokenizer import Tokenizer


def letters(vocabulary: Sequence[str], *merges: tuple[str, str]) -> Tokenizer:
    """A tokenizer whose tokens are single letters, and merged pairs of them."""
    ids = {token: i for i, token in enumerate(vocabulary)}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(ids, list(merges)))
    backend.decoder = tokenizers.decoders.Fuse()
    return Tokenizer(backend)


def alphabet(count: int) -> list[str]:
    """So many different letters."""
    return [chr(ord("\u4e00") + i) for i in range(count)]
