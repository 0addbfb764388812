"""When a request ends, and the text it shows: stop strings cut exactly, even inside an accepted draft."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

FinishReason = Literal["stop", "length"]


class Detokenizer(Protocol):
    """Turns token ids into text without ever splitting a character."""

    def push(self, ids: Sequence[int]) -> str: ...

    def flush(self) -> str: ...


class StopStrings:
    """Passes text through until one of the strings appears; holds back what might become one.

    ::

        stop = ("END",)    push("foo E") -> "foo "    push("N") -> ""    push("Dbar") -> "", found
    """

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = tuple(stop)
        self._held = ""
        self.found: str | None = None

    def push(self, text: str, *, armed: bool = True) -> str:
        """Text that may be shown now. Nothing more comes once a stop string is found.

        ``armed=False`` lets text pass unseen, for output still shorter than ``min_tokens``.
        """
        if not self._stop or self.found is not None:
            return "" if self.found is not None else text
        if not armed:
            return text
        text = self._held + text
        hits = [(at, s) for s in self._stop if (at := text.find(s)) >= 0]
        if hits:
            at, self.found = min(hits, key=lambda hit: (hit[0], -len(hit[1])))
            self._held = ""
            return text[:at]
        keep = max((_overlap(text, s) for s in self._stop), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """The text held back, at the end of the output."""
        text, self._held = self._held, ""
        return text


def _overlap(text: str, stop: str) -> int:
    """Length of the longest suffix of ``text`` that begins ``stop``."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)
