"""How many values a JSON body may hold, counted before it is read.

Reading a value costs about as much as a hundred characters of text, and holds Python's lock: eight megabytes of ``[]``
would stop the event loop for seconds, from whichever thread they are read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from outrider.server.http.errors import ApiError

MAX_ELEMENTS = 1 << 18  # commas, or as many as the context holds tokens
MAX_CONTAINERS = 1 << 15  # lists, objects and names in objects
MAX_ESCAPES = 1 << 20  # characters written as \\n or \\u00e9, each of which costs as much as a hundred others
PIECE = 1 << 17  # bytes
UNKNOWN = 16  # unknown fields of an object that are looked at one by one


def check_structure(body: bytes, max_seq_len: int) -> None:
    """Raises ApiError 413 for a body of too many values; text counts for nothing."""
    most = max(MAX_ELEMENTS, 2 * max_seq_len)
    if (escapes := body.count(b"\\")) > MAX_ESCAPES:
        raise _too_large(f"the body has {escapes} escaped characters, and at most {MAX_ESCAPES} are taken: send UTF-8")
    if _problem(_counts(np.frombuffer(body, np.uint8)), most) and (message := _problem(_outside_strings(body), most)):
        raise _too_large(message)


def _too_large(message: str) -> ApiError:
    return ApiError(413, message, code="body_too_large")


def _problem(counts: Mapping[str, int], most: int) -> str | None:
    elements, containers = counts[","], counts["["] + counts["{"] + counts[":"]
    if elements > most:
        return f"the body has {elements} values, and at most {most} are taken: send less in one request"
    if containers > MAX_CONTAINERS:
        return f"the body has {containers} lists and names, and at most {MAX_CONTAINERS} are taken: send fewer"
    return None


def _counts(data: NDArray[np.uint8]) -> Counter[str]:
    return Counter({mark: int(np.count_nonzero(data == ord(mark))) for mark in ",[{:"})


def _outside_strings(body: bytes) -> Counter[str]:
    """As ``_counts``, of what is in no string: piece by piece, as NumPy keeps Python's lock in some of this."""
    data = np.frombuffer(body.replace(b"\\\\", b"..").replace(b'\\"', b".."), np.uint8)
    counts, within = Counter[str](), 0
    for start in range(0, len(data), PIECE):
        piece = data[start : start + PIECE]
        inside = np.cumsum(piece == ord('"'), dtype=np.uint32) + within
        counts += _counts(piece[inside % 2 == 0])
        within = int(inside[-1]) % 2
    return counts
