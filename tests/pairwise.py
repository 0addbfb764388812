"""Fewer cases than a full product, and still every pair of values together in one of them.

Most bugs need one or two things to come together (Kuhn et al. 2004, "Software fault interactions"). Where the laws of
single parts are worked out elsewhere, the fast suite takes such a covering; the slow tests run the full product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations, product
from typing import Any

import pytest

Row = tuple[Any, ...]


def pairwise(*factors: Sequence[Any], allowed: Callable[..., bool] = lambda *row: True) -> list[Row]:
    """Rows with a value of each factor, such that every pair that any allowed row holds is in one of them.

    Greedy and deterministic: of the rows that are left, the one with the most new pairs is next. No more rows than the
    product, and about as many as the two longest factors have pairs.
    """
    rows = [row for row in product(*factors) if allowed(*row)]
    missing = {pair for row in rows for pair in _pairs(row)}
    chosen: list[Row] = []
    most = len(factors) * (len(factors) - 1) // 2
    while missing:
        left: list[Row] = []
        best = 0
        for row in rows:
            gain = sum(pair in missing for pair in _pairs(row))
            if gain == most:
                chosen.append(row)
                missing.difference_update(_pairs(row))
            elif gain:
                best = max(best, gain)
                left.append(row)
        rows, most = left, best
    return chosen


def _pairs(row: Row) -> list[tuple[int, Any, int, Any]]:
    return [(i, row[i], j, row[j]) for i, j in combinations(range(len(row)), 2)]


def spread(rows: Iterable[Row], factor: int) -> list[Row]:
    """One row for each value of a factor, so that the other factors' values come up about equally often."""
    by_value: dict[Any, list[Row]] = {}
    for row in rows:
        by_value.setdefault(row[factor], []).append(row)
    used: dict[tuple[int, Any], int] = {}
    chosen: list[Row] = []
    for own in by_value.values():
        row = min(own, key=lambda row: sum(used.get((i, value), 0) for i, value in enumerate(row) if i != factor))
        for i, value in enumerate(row):
            used[i, value] = used.get((i, value), 0) + 1
        chosen.append(row)
    return chosen


def slow_unless(rows: Iterable[Row], fast: Iterable[Row]) -> list[Any]:
    """Parameters for pytest: all rows, those that are not among ``fast`` marked as slow."""
    kept = set(fast)
    return [pytest.param(*row, marks=() if row in kept else pytest.mark.slow) for row in rows]
