"""Earlier places of a text's last tokens, found by looking at the whole text.

A place is the number of a token and the tokens before it that agree, ``MAX_MATCH`` at most. A text is an array of
int32: a prompt of 100,000 tokens is read in some 20 microseconds, and nothing is kept or forgotten beside it.
"""

from __future__ import annotations

import ctypes
from array import array
from typing import Any, TypeAlias

import numpy as np

from outrider.drafters.datastore import MAX_MATCH
from outrider.native.library import library
from outrider.native.signatures import quick

Tokens: TypeAlias = "array[int]"
Place: TypeAlias = tuple[int, int]

TYPE = "i"  # of the arrays
MOST = 64  # places found at once: MOST_OCCURRENCES of retrieval.h
GAP = -1  # parts two texts in one array
_SHORT, _LONG = 2, 4
_BYTES = 4


def occurrences(text: Tokens, tail: Tokens, limit: int) -> list[Place]:
    """Up to ``limit`` places, at most ``MOST``, behind which ``text`` goes on, and before which it ends as ``tail``.

    Those that agree in 4 tokens come first, then those in 2, then in 1; of each the latest first. A negative token
    parts two texts.
    """
    native = library()
    return _by_numpy(text, tail, limit) if native is None else _by_library(native, text, tail, limit)


def copied(text: Tokens, first: int, stop: int, prompt: int) -> tuple[int, int] | None:
    """The first token from number ``first`` to ``stop - 1`` that ends a copy of ``MAX_MATCH`` tokens of the prompt.

    And the latest place of the prompt, the first ``prompt`` tokens, that goes on behind such a copy; None: no token.
    """
    native = library()
    if native is not None:
        place = ctypes.c_int64()
        at = quick(native, "outrider_copied")(stop, text.buffer_info()[0], first, prompt, ctypes.addressof(place))
        return None if at < 0 else (at, place.value)
    known = text[: prompt - 1].tobytes()
    for i in range(max(first, MAX_MATCH - 1), stop):
        wanted = text[i + 1 - MAX_MATCH : i + 1].tobytes()
        at = known.rfind(wanted)
        while at % _BYTES and at >= 0:
            at = known.rfind(wanted, 0, at + len(wanted) - 1)
        if at >= 0:
            return i, at // _BYTES + MAX_MATCH
    return None


def _by_library(native: ctypes.CDLL, text: Tokens, tail: Tokens, limit: int) -> list[Place]:
    out: Any = array(TYPE, bytes(2 * _BYTES * MOST))
    place, _ = out.buffer_info()
    address, tokens = text.buffer_info()
    end, length = tail.buffer_info()
    search = quick(native, "outrider_occurrences")
    count = search(tokens, address, length, end, min(limit, MOST), place, place + _BYTES * MOST)
    return list(zip(out[:count], out[MOST : MOST + count], strict=True))


def _by_numpy(text: Tokens, tail: Tokens, limit: int) -> list[Place]:
    wanted = np.array(tail[: -1 - MAX_MATCH : -1], np.int32)
    before = np.concatenate([np.full(MAX_MATCH, GAP, np.int32), np.array(text, np.int32)])
    if len(wanted) == 0 or len(text) < 2:
        return []
    ends = np.flatnonzero((before[MAX_MATCH:-1] == wanted[0]) & (before[MAX_MATCH + 1 :] >= 0))[::-1] + 1
    same = before[ends[:, None] + MAX_MATCH - 1 - np.arange(len(wanted))] == wanted
    match = np.logical_and.accumulate(same, axis=1).sum(axis=1)
    rank = (match < _LONG).astype(int) + (match < _SHORT)
    best = np.argsort(rank, kind="stable")[: min(limit, MOST)]
    return list(zip(ends[best].tolist(), match[best].tolist(), strict=True))
