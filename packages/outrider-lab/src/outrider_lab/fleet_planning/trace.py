"""Reads requests from a recorded trace: JSON lines as Mooncake and aiperf write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from outrider.errors import InvalidRequestError
from outrider_lab.fleet_planning.workload import Segment, Workload

HASH_BLOCK = 512
"""Tokens of one of a trace's ``hash_ids``."""


def read_trace(path: Path) -> Workload:
    """Requests of a file with one JSON object a line.

    Each object has ``timestamp`` (milliseconds), ``input_length`` and ``output_length`` (tokens). Optional are
    ``hash_ids``, one for each 512 tokens of the prompt, which names all tokens up to their end, and ``session_id``:
    without ``hash_ids``, a session's prompt begins with its earlier prompts.

    Raises:
        InvalidRequestError: the file cannot be read, or has another form; the message names the line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InvalidRequestError(f"trace={str(path)!r} cannot be read: {reason}", param="trace") from None
    rows = [_row(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not rows:
        raise InvalidRequestError(f"trace={str(path)!r} has no requests: give one JSON object a line", param="trace")
    rows.sort(key=lambda row: row["timestamp"])
    names: dict[Any, int] = {}
    sessions = [names.setdefault(row.get("session_id", ("request", i)), len(names)) for i, row in enumerate(rows)]
    times = np.array([row["timestamp"] for row in rows], dtype=np.float64) / 1e3
    times -= times[0]
    last: dict[int, int] = {}
    follows = []
    for i, session in enumerate(sessions):
        follows.append(last.get(session, -1))
        last[session] = i
    return Workload(
        arrivals=times,
        prompts=np.array([row["input_length"] for row in rows], dtype=np.int64),
        outputs=np.array([row["output_length"] for row in rows], dtype=np.int64),
        sessions=np.array(sessions, dtype=np.int64),
        follows=np.array(follows, dtype=np.int64),
        segments=[_segments(row, session) for row, session in zip(rows, sessions, strict=True)],
        grows=not any("hash_ids" in row for row in rows),
        duration=float(times[-1]) + (float(times[-1]) / max(1, len(times) - 1) or 1.0),
    )


def _row(path: Path, number: int, line: str) -> dict[str, Any]:
    """One request, checked."""
    place = f"trace={str(path)!r}, line {number}"
    try:
        row = json.loads(line)
    except ValueError as error:
        raise InvalidRequestError(f"{place} is not JSON: {error}", param="trace") from None
    if not isinstance(row, dict):
        raise InvalidRequestError(f"{place} is not an object: give timestamp and lengths by name", param="trace")
    for name, least in (("timestamp", 0), ("input_length", 1), ("output_length", 1)):
        value = row.get(name)
        if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value < 1e15:
            raise InvalidRequestError(f"{place}: {name}={value!r} is not valid: use {least} or more", param="trace")
    if not isinstance(row.get("hash_ids", []), list):
        raise InvalidRequestError(f"{place}: hash_ids={row['hash_ids']!r} is no list of block numbers", param="trace")
    return row


def _segments(row: dict[str, Any], session: int) -> tuple[Segment, ...]:
    length, ids = int(row["input_length"]), row.get("hash_ids")
    if not ids:
        return ((("talk", session), length),)
    segments: list[Segment] = [
        (str(block), min(HASH_BLOCK, length - i * HASH_BLOCK)) for i, block in enumerate(ids) if i * HASH_BLOCK < length
    ]
    rest = length - HASH_BLOCK * len(ids)
    return (*segments, (("rest", session, length), rest)) if rest > 0 else tuple(segments)
