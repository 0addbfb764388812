"""The length of greedy outputs that a slow server's time allows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from outrider_lab.referee.sides import Side

__all__ = ["fit_tokens"]

PROBE = 8  # tokens
LEAST = 16
IN_TURN = 40
"""Outputs, of both sides, for which the time must suffice if the server answers one after the other: 12 prompts alone
from each side, and a company of 16."""


def fit_tokens(ours: Side, theirs: Side, request: Mapping[str, Any], wanted: int, short: int, seconds: float) -> int:
    """The most tokens, up to ``wanted``, of every second output (the others have ``short``) that ``seconds`` allow.

    Each side answers the beginning of ``request`` twice; the first answer, which may wait for a compiler, does not
    count.
    """
    if math.isinf(seconds):
        return wanted
    each = 0.0  # seconds per token of the slower side
    for side in (ours, theirs):
        replies = [side.complete({**request, "max_tokens": PROBE}) for _ in range(2)]
        each = max(each, replies[1].seconds / PROBE)
    if not each:
        return wanted  # refused; the checks will say so
    return max(min(wanted, LEAST), min(wanted, int(2 * seconds / (IN_TURN * each)) - short))
