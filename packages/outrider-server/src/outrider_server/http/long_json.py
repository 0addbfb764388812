"""Long answers as JSON, written piece by piece: one call for all of it would hold Python's lock for seconds."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from outrider_server.http.errors import to_json

DEPTH = 6  # of an answer's own lists and objects; the ones inside are small
PIECE = 4096  # numbers or texts written at once
OBJECTS = 16  # of an iterator, written at once: about a millisecond, where each has twenty others inside


def to_long_json(value: Any, depth: int = DEPTH) -> bytes:
    """The same bytes as ``to_json``, for any other thread to come between. Iterators are lists, made meanwhile."""
    if isinstance(value, Iterator):
        pieces = iter(lambda: to_json(list(islice(value, OBJECTS)))[1:-1], b"")
        return b"[" + b",".join(pieces) + b"]"
    if depth and isinstance(value, dict):
        return b"{" + b",".join(to_json(k) + b":" + to_long_json(v, depth - 1) for k, v in value.items()) + b"}"
    if depth and isinstance(value, list) and value and isinstance(value[0], dict | list):
        return b"[" + b",".join(to_long_json(item, depth - 1) for item in value) + b"]"
    if isinstance(value, list) and len(value) > PIECE:
        starts = range(0, len(value), PIECE)
        return b"[" + b",".join(to_json(value[start : start + PIECE])[1:-1] for start in starts) + b"]"
    return to_json(value)
