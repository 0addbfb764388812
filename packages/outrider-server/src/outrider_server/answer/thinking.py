"""Thinking apart from the answer, and the answer out of its wrapper, as the text grows."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from outrider_server.answer.formats import ThinkingFormat

__all__ = ["ThinkingSplitter", "Unwrapper", "held_back"]

Kind = Literal["thinking", "text"]


def held_back(text: str, markers: Collection[str]) -> int:
    """Characters at the end of ``text`` that may be the beginning of one of ``markers``."""
    longest = min(max(map(len, markers), default=1) - 1, len(text))
    return next((n for n in range(longest, 0, -1) if any(m.startswith(text[-n:]) for m in markers if len(m) > n)), 0)


def _before(marker: str, text: str, end: bool) -> tuple[str, str, bool]:
    """The text certain to stand before ``marker``, the rest of ``text`` without it, and whether it was there."""
    at = text.find(marker)
    if at >= 0:
        return text[:at].rstrip("\n"), text[at + len(marker) :], True
    if end:
        return text, "", False
    certain = text[: len(text) - held_back(text, (marker,))].rstrip("\n")
    return certain, text[len(certain) :], False


class ThinkingSplitter:
    """Splits a model's output at the end of its thinking section.

    ::

        push("<thi")                     -> []
        push("nk>\\nWell")               -> [("thinking", "Well")]
        push(".\\n</think>\\n\\nYes.")   -> [("thinking", "."), ("text", "Yes.")]

    A section stands at the beginning of an answer or nowhere. Line breaks around it belong to neither part.
    """

    def __init__(self, markers: ThinkingFormat | None, *, inside: bool) -> None:
        """``inside``: the prompt has opened the section. Without ``markers`` everything is text."""
        self._open, self._close = (markers.opening, markers.closing) if markers else ("", "")
        self._state: Literal["start", "inside", "behind", "text"] = "text"
        if markers is not None:
            self._state = "inside" if inside else "start"
        self._held, self._fresh = "", inside

    def push(self, text: str, *, end: bool = False) -> list[tuple[Kind, str]]:
        """The pieces that are now certain, in order; ``end``: no text follows."""
        self._held += text
        parts: list[tuple[Kind, str]] = []
        if self._state == "start":
            self._start(end)
        if self._state == "inside":
            self._thinking(parts, end)
        if self._state == "behind":
            self._held = self._held.lstrip()
            self._state = "text" if self._held else "behind"
        if self._state == "text" and self._held:
            parts.append(("text", self._held))
            self._held = ""
        return parts

    def _start(self, end: bool) -> None:
        begun = self._held.lstrip()
        if begun.startswith(self._open):
            self._held, self._state, self._fresh = begun[len(self._open) :], "inside", True
        elif end or not self._open.startswith(begun):
            self._state = "text"

    def _thinking(self, parts: list[tuple[Kind, str]], end: bool) -> None:
        if self._fresh:
            self._held = self._held.lstrip("\n")
            self._fresh = not self._held
        shown, self._held, closed = _before(self._close, self._held, end)
        if closed:
            self._state = "behind"
        if shown:
            parts.append(("thinking", shown))


class Unwrapper:
    """Takes markers around the whole text of an answer away.

    ::

        push("<response>\\nYes")         -> "Yes"
        push(".\\n</response>\\n")       -> "."

    A text that does not begin with the first marker is left as it is.
    """

    def __init__(self, wrapper: tuple[str, str] | None) -> None:
        self._open, self._close = wrapper or ("", "")
        self._state: Literal["start", "first", "inside", "behind", "text"] = "start" if wrapper else "text"
        self._held = ""

    def push(self, text: str, *, end: bool = False) -> str:
        """The text that is now certain; ``end``: no more follows."""
        self._held += text
        if self._state == "start":
            self._start(end)
        if self._state == "first":
            self._held = self._held.lstrip("\n")
            self._state = "inside" if self._held else "first"
        shown = ""
        if self._state == "inside":
            shown, self._held, closed = _before(self._close, self._held, end)
            self._state = "behind" if closed else "inside"
        if self._state == "behind":  # calls may follow
            self._held = self._held.lstrip("\n")
        if self._state in ("behind", "text"):
            shown, self._held = shown + self._held, ""
        return shown

    def _start(self, end: bool) -> None:
        begun = self._held.lstrip()
        if begun.startswith(self._open):
            self._held, self._state = begun[len(self._open) :], "first"
        elif end or not self._open.startswith(begun):
            self._state = "text"
