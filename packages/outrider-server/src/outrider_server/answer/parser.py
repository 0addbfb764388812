"""``AnswerParser``: thinking, text and tool calls, in order, as an answer grows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from outrider_server.answer.formats import ThinkingFormat, ToolFormat
from outrider_server.answer.parsed import ParsedCall
from outrider_server.answer.thinking import ThinkingSplitter, Unwrapper, held_back
from outrider_server.answer.tool_calls import may_be_calls, parse_calls

__all__ = ["Answer", "AnswerParser", "AnswerPart", "UpToFirstCall"]


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
        thinking: ThinkingFormat | None = None,
        tools: ToolFormat | None = None,
        *,
        wrapper: tuple[str, str] | None = None,
        inside_thinking: bool = False,
        schemas: Mapping[str, Any] | None = None,
    ) -> None:
        """Args:
        thinking: the markers around it; None: there is none.
        tools: how calls are written; None: all is text.
        wrapper: markers that may stand around the whole text.
        inside_thinking: the prompt has opened a thinking section.
        schemas: of the tools' arguments, by name.
        """
        self._splitter = ThinkingSplitter(thinking, inside=inside_thinking)
        self._unwrapper = Unwrapper(wrapper)
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
                self._push_text(self._unwrapper.push(piece), parts)
        if end:
            self._push_text(self._unwrapper.push("", end=True), parts)
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
            self._marked(self._tools, self._tools.opening, parts)

    def _may_be_bare(self, text: str) -> bool:
        """Whether the answer so far may be calls as a whole, with or without a marker before it."""
        marker = (self._tools.opening if self._tools else None) or ""
        return may_be_calls(text) or (marker != "" and marker.startswith(text[: len(marker)]))

    def _marked(self, form: ToolFormat, opening: str, parts: list[AnswerPart]) -> None:
        markers = (opening, *form.around)
        while (found := self._first(markers)) is not None:
            at, marker = found
            self._show(self._held[:at], parts)
            self._held = self._held[at:]
            if marker != opening:
                self._go_on_behind(len(marker))
                continue
            close = self._held.find(form.closing, len(marker)) if form.closing else -1
            if close < 0:
                return
            inner, end = self._held[len(marker) : close], close + len(form.closing)
            if self._call(inner, parts):
                self._go_on_behind(end)
            else:
                self._show(self._held[:end], parts)
                self._held = self._held[end:]
        cut = len(self._held) - held_back(self._held, markers)
        self._show(self._held[:cut], parts)
        self._held = self._held[cut:]

    def _first(self, markers: tuple[str, ...]) -> tuple[int, str] | None:
        """The first of ``markers`` in the text that is held, and its place."""
        return min(((at, marker) for marker in markers if (at := self._held.find(marker)) >= 0), default=None)

    def _go_on_behind(self, end: int) -> None:
        """Drop ``end`` characters that are no text, and the line breaks behind them."""
        self._held = self._held[end:].lstrip("\n")
        self._after_call = not self._held

    def _flush(self, parts: list[AnswerPart]) -> None:
        """The end of the answer: calls without a closing marker are read now, and the rest is text."""
        text, self._held = self._held, ""
        form = self._tools or ToolFormat(None)
        marker, inner = form.opening or "", text.strip()
        for last in (*form.around, form.closing):
            inner = inner.removesuffix(last).rstrip()
        marked = bool(marker) and inner.startswith(marker)
        if text and not self._call(inner.removeprefix(marker), parts, unmarked=not marked):
            self._show(text, parts)

    def _call(self, text: str, parts: list[AnswerPart], *, unmarked: bool = False) -> bool:
        if self._tools is None:
            return False
        calls = parse_calls(text, self._schemas, strict=True) if unmarked else self._tools.read(text, self._schemas)
        parts += [AnswerPart("call", call=call) for call in calls or ()]
        return calls is not None

    def _show(self, text: str, parts: list[AnswerPart]) -> None:
        if text:
            self._shown = True
            parts.append(AnswerPart("text", text))


class UpToFirstCall:
    """A parser's parts up to the first call (``parallel_tool_calls: false``); the model may have written more."""

    def __init__(self, parser: AnswerParser) -> None:
        self._parser, self._called = parser, False

    def push(self, text: str, *, end: bool = False) -> list[AnswerPart]:
        """The parts that are now certain; with ``end``, all remaining parts."""
        parts = [] if self._called else self._parser.push(text, end=end)
        first = next((place for place, part in enumerate(parts) if part.call is not None), None)
        self._called |= first is not None
        return parts if first is None else parts[: first + 1]
