"""``AnswerParser``: thinking, text and tool calls, in order, as an answer grows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from outrider_server.answer.formats import ToolFormat
from outrider_server.answer.thinking import ThinkingSplitter, held_back
from outrider_server.answer.tool_calls import ParsedCall, parse_calls


@dataclass(frozen=True)
class AnswerPart:
    """A piece of an answer; ``call`` is whole, the others go on."""

    kind: Literal["thinking", "text", "call"]
    text: str = ""
    call: ParsedCall | None = None


@dataclass
class Answer:
    """A whole answer."""

    thinking: str = ""
    text: str = ""
    calls: list[ParsedCall] = field(default_factory=list)


class AnswerParser:
    """Takes an answer apart.

    ::

        push("Let me look. <tool")                               -> text "Let me look. "
        push('_call>{"name": "f", "arguments": {}}</tool_call>') -> call f

    Text that looked like a call and is none comes back unchanged.
    """

    def __init__(
        self,
        thinking: tuple[str, str] | None = None,
        tools: ToolFormat | None = None,
        *,
        inside_thinking: bool = False,
        schemas: Mapping[str, Any] | None = None,
    ) -> None:
        """Args:
        thinking: the markers around it; None: there is none.
        tools: how calls are written; None: all is text.
        inside_thinking: the prompt has opened a thinking section.
        schemas: of the tools' arguments, by name.
        """
        self._splitter = ThinkingSplitter(thinking, inside=inside_thinking)
        self._tools, self._schemas = tools, schemas or {}
        self._held = ""
        self._shown = False
        self._after_call = False
        self.answer = Answer()

    def push(self, text: str, *, end: bool = False) -> list[AnswerPart]:
        """The parts that are now certain; with ``end``, all remaining parts."""
        parts: list[AnswerPart] = []
        for kind, piece in self._splitter.push(text, end=end):
            if kind == "thinking":
                parts.append(AnswerPart("thinking", piece))
            else:
                self._push_text(piece, parts)
        if end:
            self._flush(parts)
        for part in parts:
            self._keep(part)
        return parts

    def _keep(self, part: AnswerPart) -> None:
        if part.call is not None:
            self.answer.calls.append(part.call)
        elif part.kind == "thinking":
            self.answer.thinking += part.text
        else:
            self.answer.text += part.text

    def _push_text(self, text: str, parts: list[AnswerPart]) -> None:
        if self._tools is None:
            self._show(text, parts)
            return
        self._held += text
        if self._after_call:  # line breaks between calls are no text
            self._held = self._held.lstrip("\n")
            self._after_call = not self._held
        if self._tools.bare and not self._shown and self._may_be_bare(self._held.lstrip()):
            return
        if self._tools.opening is None:
            self._show(self._held, parts)
            self._held = ""
        else:
            self._marked(self._tools.opening, self._tools.closing, parts)

    def _may_be_bare(self, text: str) -> bool:
        """Whether the answer so far may be JSON as a whole, with or without a marker before it."""
        marker = (self._tools.opening if self._tools else None) or ""
        return text[:1] in ("", "{") or (marker != "" and marker.startswith(text[: len(marker)]))

    def _marked(self, marker: str, end: str, parts: list[AnswerPart]) -> None:
        while (at := self._held.find(marker)) >= 0:
            self._show(self._held[:at], parts)
            self._held = self._held[at:]
            close = self._held.find(end, len(marker)) if end else -1
            if close < 0:
                return
            inner, self._held = self._held[len(marker) : close], self._held[close + len(end) :]
            if not self._call(inner, parts):
                self._show(marker + inner + end, parts)
            else:
                self._held = self._held.lstrip("\n")
                self._after_call = not self._held
        cut = len(self._held) - held_back(self._held, marker)
        self._show(self._held[:cut], parts)
        self._held = self._held[cut:]

    def _flush(self, parts: list[AnswerPart]) -> None:
        """The end of the answer: calls without a closing marker are read now, and the rest is text."""
        text, self._held = self._held, ""
        marker = (self._tools.opening if self._tools else None) or ""
        inner = text.strip()
        marked = bool(marker) and inner.startswith(marker)
        if text and not self._call(inner.removeprefix(marker), parts, strict=not marked):
            self._show(text, parts)

    def _call(self, text: str, parts: list[AnswerPart], *, strict: bool = False) -> bool:
        calls = parse_calls(text, self._schemas, strict=strict)
        parts += [AnswerPart("call", call=call) for call in calls or ()]
        return calls is not None

    def _show(self, text: str, parts: list[AnswerPart]) -> None:
        if text:
            self._shown = True
            parts.append(AnswerPart("text", text))
