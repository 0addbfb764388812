"""An earlier occurrence of a text's last tokens, from which drafts are copied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

MAX_MATCH = 16  # longer matches predict no better


class Occurrence(NamedTuple):
    """The ``match`` tokens before ``tokens[end]`` equal the last tokens searched for; the text continues from there."""

    text: int
    tokens: Sequence[int]
    end: int
    match: int
