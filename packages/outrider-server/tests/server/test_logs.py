"""A line for everything, but not a line for everything that a stranger does."""

from __future__ import annotations

import logging

from outrider_server.http.logs import LINES, PERIOD, RateLimit, TextFormatter


def lines(limit: RateLimit, count: int, level: int = logging.WARNING, line: int = 1, **extra: object) -> list[str]:
    """What passes of so many lines from one place."""
    passed = []
    for _ in range(count):
        record = logging.LogRecord("outrider.x", level, "file.py", line, "hello", (), None)
        vars(record).update(extra)
        if limit.filter(record):
            passed.append(TextFormatter().format(record))
    return passed


def test_warnings_from_one_place_are_limited_and_counted() -> None:
    now = 0.0
    limit = RateLimit(lambda: now)
    assert len(lines(limit, 1000)) == LINES
    assert len(lines(limit, 1000, line=2)) == LINES, "each place has its own share"
    now += PERIOD
    (first, *_) = lines(limit, 5)
    assert first.endswith(f"hello left_out={1000 - LINES}")
    now += PERIOD
    assert lines(limit, 1)[0].endswith("hello")


def test_refusals_are_limited_by_status_and_answers_are_not() -> None:
    limit = RateLimit(lambda: 0.0)
    assert len(lines(limit, 1000, logging.INFO, status=401)) == LINES
    assert len(lines(limit, 1000, logging.INFO, status=404)) == LINES
    assert len(lines(limit, 1000, logging.INFO, status=200)) == 1000
    assert len(lines(limit, 1000, logging.INFO)) == 1000
