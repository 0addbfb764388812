"""How many values a JSON body, or texts in it that are JSON themselves, may hold, counted before they are read.

Reading a value costs about as much as a hundred characters of text, and holds Python's lock: eight megabytes of ``[]``
would stop the event loop for seconds, from whichever thread they are read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from outrider_server.http.errors import ApiError

MAX_ELEMENTS = 1 << 18  # commas, or as many as the context holds tokens
MAX_CONTAINERS = 1 << 15  # lists, objects and names in objects
MAX_ESCAPES = 1 << 20  # characters written as \\n or \\u00e9, each of which costs as much as a hundred others
PIECE = 1 << 17  # bytes
UNKNOWN = 16  # unknown fields of an object that are looked at one by one


def check_structure(body: bytes, max_seq_len: int) -> None:
    """Raises ApiError 413 for a body of too many values; text counts for nothing."""
    _check("the body has", [body], max_seq_len)


def check_texts(texts: Sequence[str], name: str, max_seq_len: int) -> None:
    """Raises ApiError 413 for texts of a body that have too many values together, if they are JSON."""
    _check(f"{name} have", [text.encode(errors="replace") for text in texts], max_seq_len)


def _check(have: str, texts: Sequence[bytes], max_seq_len: int) -> None:
    most = max(MAX_ELEMENTS, 2 * max_seq_len)
    if (escapes := sum(text.count(b"\\") for text in texts)) > MAX_ESCAPES:
        raise _too_large(f"{have} {escapes} escaped characters, and at most {MAX_ESCAPES} are taken: send UTF-8")
    if _problem(_counts(np.frombuffer(b"".join(texts), np.uint8)), most) is None:
        return
    if (problem := _problem(sum(map(_outside_strings, texts), Counter[str]()), most)) is not None:
        raise _too_large(f"{have} {problem}")


def _too_large(message: str) -> ApiError:
    return ApiError(413, message, code="body_too_large")


def _problem(counts: Mapping[str, int], most: int) -> str | None:
    elements, containers = counts[","], counts["["] + counts["{"] + counts[":"]
    if elements > most:
        return f"{elements} values, and at most {most} are taken: send less in one request"
    if containers > MAX_CONTAINERS:
        return f"{containers} lists and names, and at most {MAX_CONTAINERS} are taken: send fewer"
    return None


def _counts(data: NDArray[np.uint8]) -> Counter[str]:
    return Counter({mark: int(np.count_nonzero(data == ord(mark))) for mark in ",[{:"})


def _outside_strings(body: bytes) -> Counter[str]:
    """As ``_counts``, outside strings only; in pieces, because some of these NumPy functions keep Python's lock."""
    data = np.frombuffer(body.replace(b"\\\\", b"..").replace(b'\\"', b".."), np.uint8)
    counts, within = Counter[str](), 0
    for start in range(0, len(data), PIECE):
        piece = data[start : start + PIECE]
        inside = np.cumsum(piece == ord('"'), dtype=np.uint32) + within
        counts += _counts(piece[inside % 2 == 0])
        within = int(inside[-1]) % 2
    return counts
