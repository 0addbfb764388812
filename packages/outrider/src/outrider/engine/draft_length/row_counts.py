"""Numbers of rows of a pass at which costs are known; between them, costs are on straight lines."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

ROWS = (1, 2, 4, 8, 16, 32)
"""Numbers of rows between which T is linear; beyond them it is as at the end."""


def _place(rows: int) -> tuple[int, float]:
    i = min(max(bisect_left(ROWS, rows), 1), len(ROWS) - 1)
    return i - 1, (rows - ROWS[i - 1]) / (ROWS[i] - ROWS[i - 1])


_PLACES = [_place(rows) for rows in range(256)]
"""By number of rows, which of ``ROWS`` lies before it, and its share of the way to the next: every step asks often."""
_NEAREST = [min(range(len(ROWS)), key=lambda i: abs(ROWS[i] - rows)) for rows in range(ROWS[-1])]


def segment(rows: int) -> tuple[int, float]:
    """Which of ``ROWS`` lies before a number of rows, and its share of the way to the next."""
    return _PLACES[rows] if rows < len(_PLACES) else _place(rows)


def nearest(rows: int) -> int:
    """The place in ``ROWS`` of the nearest number of rows."""
    return _NEAREST[rows] if rows < len(_NEAREST) else len(ROWS) - 1


def between(values: Sequence[float], rows: int) -> float:
    """The value for a number of rows, by linear interpolation between those of ``ROWS``."""
    i, share = segment(rows)
    return values[i] + share * (values[i + 1] - values[i])
