"""A place that drafts are copied from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

MAX_MATCH = 16  # longer agreements are worth no more


class Occurrence(NamedTuple):
    """A text goes on at ``tokens[end]``; before that, ``match`` tokens agree with what was looked for."""

    text: int
    tokens: Sequence[int]
    end: int
    match: int
