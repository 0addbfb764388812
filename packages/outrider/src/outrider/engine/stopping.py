"""Stop strings and the text of an output: a stop string cuts exactly, even inside an accepted draft."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

FinishReason = Literal["stop", "length"]


class Detokenizer(Protocol):
    """Turns token ids into text without ever splitting a character."""

    def push(self, ids: Sequence[int]) -> str: ...

    def flush(self) -> str: ...


class StopStrings:
    """Passes text through until a stop string appears; holds back text that may be the start of one.

    ::

        stop = ("END",)    push("foo E") -> "foo "    push("N") -> ""    push("Dbar") -> "", found
    """

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = tuple(stop)
        self._held = ""
        self.found: str | None = None

    def push(self, text: str, *, armed: bool = True) -> str:
        """The text that can be shown now; empty once a stop string is found.

        ``armed=False`` passes text unchecked, for output still shorter than ``min_tokens``.
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


class OutputText:
    """The text of an output, extended token by token."""

    def __init__(self, detokenizer: Detokenizer | None, stop: Sequence[str]) -> None:
        """``detokenizer``: None for an output without text."""
        self.detokenizer, self.text = detokenizer, ""
        self._stop_strings = StopStrings(stop)

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the output, or None."""
        return self._stop_strings.found

    def push(self, token: int, *, armed: bool) -> str:
        """The text that a token adds; ``armed``: whether a stop string ends the output."""
        return self._show("" if self.detokenizer is None else self.detokenizer.push([token]), armed=armed)

    def finish(self, *, armed: bool) -> str:
        """The text still held back at the end, which may complete a stop string."""
        shown = self._show("" if self.detokenizer is None else self.detokenizer.flush(), armed=armed)
        if self.stop_string is None:
            held = self._stop_strings.flush()
            self.text += held
            shown += held
        return shown

    def _show(self, text: str, *, armed: bool) -> str:
        shown = self._stop_strings.push(text, armed=armed)
        self.text += shown
        return shown


def _overlap(text: str, stop: str) -> int:
    """Length of the longest suffix of ``text`` that begins ``stop``."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)
