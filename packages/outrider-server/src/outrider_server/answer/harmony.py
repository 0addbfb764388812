"""Harmony, the answer format of gpt-oss: messages with a channel each, and tool calls by their recipient.

::

    <|channel|>analysis<|message|>thinking<|end|>
    <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>
    <|start|>assistant<|channel|>final<|message|>text<|return|>

The prompt ends with ``<|start|>assistant``. ``<|call|>`` and ``<|return|>`` end the output.
"""

from __future__ import annotations

import re
from typing import Literal

from outrider_server.answer.parsed import ParsedCall
from outrider_server.answer.parser import AnswerParser, AnswerPart
from outrider_server.answer.thinking import held_back
from outrider_server.answer.tool_calls import parse_calls

__all__ = ["HarmonyParser"]

_ENDS = ("<|end|>", "<|call|>", "<|return|>", "<|start|>")
_BEGINNINGS = ("<|start|>", "assistant", "<|channel|>", "to=", "<|message|>")
_MOST_HEADER = 512  # characters
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=([^\s<]{1,128})")


class HarmonyParser(AnswerParser):
    """Takes an answer apart, as ``AnswerParser``: analysis is thinking, a recipient makes a call, the rest is text."""

    def __init__(self, prompt: str = "", *, tools: bool = False, forced: bool = False) -> None:
        """Args:
        prompt: its end, from which the answer goes on: within a header, or within a message.
        tools: the model was told of tools; else a call is text.
        forced: the final message is a call, as a grammar made it.
        """
        super().__init__()
        self._told, self._forced = tools, forced
        self._channel, self._recipient = "final", ""
        self._in_header, self._content, self._shown_kinds = False, "", set[str]()
        self._pending, self._fresh = "", True
        header = prompt.rfind("<|start|>")
        if header >= 0:
            self._read(prompt[header:], [])
            self._content, self._shown_kinds = "", set()

    def push(self, text: str, *, end: bool = False) -> list[AnswerPart]:
        """The parts that are now certain; with ``end``, all remaining parts."""
        parts: list[AnswerPart] = []
        self._read(text, parts)
        if end:
            self._end(parts)
        for part in parts:
            self._keep(part)
        return parts

    def _read(self, text: str, parts: list[AnswerPart]) -> None:
        self._pending += text
        while self._pending and (self._header() if self._in_header else self._message(parts)):
            pass

    def _header(self) -> bool:
        """Read on to a message's content; False where more text is needed."""
        at = self._pending.find("<|message|>")
        own = self._pending.removeprefix("<|start|>").removeprefix("assistant")
        begun = own.lstrip()
        odd = bool(begun) and not any(text.startswith(begun[: len(text)]) for text in _BEGINNINGS)
        if odd or (at < 0 and len(own) > _MOST_HEADER):  # no header: a model that writes text
            self._pending, self._content = own, ""
            self._in_header, self._channel, self._recipient, self._fresh = False, "final", "", True
            return True
        if at < 0:
            return False
        header, self._pending = self._pending[:at], self._pending[at + len("<|message|>") :]
        channel, recipient = _CHANNEL.search(header), _RECIPIENT.search(header)
        self._channel = channel[1] if channel else "final"
        self._recipient = recipient[1] if recipient else ""
        self._in_header, self._content, self._fresh = False, "", True
        return True

    def _message(self, parts: list[AnswerPart]) -> bool:
        found = min(((at, end) for end in _ENDS if (at := self._pending.find(end)) >= 0), default=None)
        if found is None:
            cut = len(self._pending) - held_back(self._pending, _ENDS)
            self._say(self._pending[:cut], parts)
            self._pending = self._pending[cut:]
            return False
        at, end = found
        self._say(self._pending[:at], parts)
        self._pending = self._pending[at + (0 if end == "<|start|>" else len(end)) :]
        self._finish(parts)
        self._in_header = True
        return True

    @property
    def _is_held(self) -> bool:
        """Whether the message is shown once it is whole: as a call."""
        return (bool(self._recipient) and self._told) or (self._forced and self._channel == "final")

    def _say(self, text: str, parts: list[AnswerPart]) -> None:
        if self._is_held:
            self._content += text
            return
        if not text:
            return
        kind: Literal["thinking", "text"] = "thinking" if self._channel == "analysis" else "text"
        between = "\n\n" if self._fresh and kind in self._shown_kinds else ""
        self._shown_kinds.add(kind)
        self._fresh = False
        parts.append(AnswerPart(kind, between + text))

    def _finish(self, parts: list[AnswerPart]) -> None:
        """The end of a message."""
        content, self._content = self._content, ""
        if not self._is_held or not (content or self._recipient):
            return
        if self._recipient and self._told:
            name = self._recipient.removeprefix("functions.")
            parts.append(AnswerPart("call", call=ParsedCall(name, content.strip() or "{}")))
            return
        calls = parse_calls(content, {}, strict=True)
        parts += [AnswerPart("call", call=call) for call in calls or ()]
        if calls is None:
            parts.append(AnswerPart("text", content))

    def _end(self, parts: list[AnswerPart]) -> None:
        if not self._in_header:
            self._say(self._pending, parts)
            self._pending = ""
            self._finish(parts)
        elif self._pending.strip() and not self._pending.startswith("<|start|>"):
            parts.append(AnswerPart("text", self._pending))  # no header came of it
            self._pending = ""
