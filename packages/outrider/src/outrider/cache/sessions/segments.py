"""Segments: up to 64 rows of a sequence, or its recurrent state.

A segment is named by the digest of all tokens up to its end, and of the domain that they belong to. So equal names mean
equal contents, and one file serves all conversations that begin alike.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from outrider.cache.blocks import Digest, chain_digests, key_bytes

__all__ = ["SEGMENT", "Segment", "chain", "child_digest", "shared"]

SEGMENT = 64
"""Tokens of a full segment."""


@dataclass
class Segment:
    """What is known of a file without reading its arrays."""

    digest: Digest
    parent: Digest  # of the rows before its own
    start: int  # the first of its rows
    tokens: tuple[int, ...]  # keys of the prefix cache, one a row
    is_state: bool = False  # it holds the recurrent state of ``start + len(tokens)`` rows, and no rows
    size: int = 0  # bytes of its file
    domain: bytes = field(default=b"", compare=False)  # whose key encrypts it, if any does
    used: float = field(default=0.0, compare=False)  # seconds since 1970

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)


def child_digest(parent: Digest, tokens: Sequence[int]) -> Digest:
    """The digest of the rows before a segment and its own, as ``chain_digests`` has it of full segments."""
    return hashlib.blake2b(parent + b"".join(map(key_bytes, tokens)), digest_size=16).digest()


def chain(tokens: Sequence[int], salt: str) -> list[Digest]:
    """The parents of the segments of ``tokens``: nobody finds one without the salt of its domain."""
    root = hashlib.blake2b(salt.encode(), digest_size=16).digest()
    return [root, *chain_digests(tokens, SEGMENT, salt)]


def shared(segment: Segment, tokens: Sequence[int]) -> int:
    """How many of a segment's rows are those of ``tokens``, if all rows before it are."""
    theirs = tokens[segment.start : segment.end]
    return next((i for i, (a, b) in enumerate(zip(segment.tokens, theirs, strict=False)) if a != b), len(theirs))
