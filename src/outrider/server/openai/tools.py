"""Tool calls in a model's text: found as it grows, between the markers that the model's chat template uses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MARKERS = {
    "<tool_call>": "</tool_call>",  # Hermes, Qwen, SmolLM: one {"name", "arguments"} between the markers
    "[TOOL_CALLS]": "",  # Mistral: a list of them, to the end
    "<|python_tag|>": "",  # Llama 3: one, to the end
}
"""Opening and closing markers."""


def opening_marker(template: str) -> str | None:
    """The opening marker that a chat template uses; None: a bare JSON object that is the whole answer (Llama 3.2)."""
    return next((marker for marker in MARKERS if marker in template), None)


@dataclass(frozen=True)
class ParsedCall:
    name: str
    arguments: str  # JSON


class ToolParser:
    """Passes text through, and keeps back what is, or may become, a tool call.

    ::

        push("Let me look. <tool")  -> "Let me look. "
        push('_call>{"name": "f", "arguments": {}}</tool_call>') -> ""      calls: f

    What turns out not to be a call comes back as the text it was.
    """

    def __init__(self, marker: str | None) -> None:
        self._marker = marker
        self._held = ""
        self._shown = False
        self._after_call = False
        self.calls: list[ParsedCall] = []

    def push(self, text: str) -> str:
        self._held += text
        if self._after_call:  # line breaks between calls are no text
            self._held = self._held.lstrip("\n")
            self._after_call = not self._held
        shown = self._bare() if self._marker is None else self._marked(self._marker, MARKERS[self._marker])
        self._shown = self._shown or bool(shown)
        return shown

    def flush(self) -> str:
        """The end of the answer: calls without a closing marker are read now, and the rest is text."""
        text, self._held = self._held, ""
        calls = _calls(text.strip().removeprefix(self._marker or ""))
        if calls is None:
            return text
        self.calls += calls
        return ""

    def _bare(self) -> str:
        """Nothing is shown as long as the answer may be one JSON object."""
        if not self._shown and self._held.lstrip()[:1] in ("", "{"):
            return ""
        text, self._held = self._held, ""
        return text

    def _marked(self, marker: str, end: str) -> str:
        shown = ""
        while (at := self._held.find(marker)) >= 0:
            shown, self._held = shown + self._held[:at], self._held[at:]
            close = self._held.find(end, len(marker)) if end else -1
            if close < 0:
                return shown
            inner, self._held = self._held[len(marker) : close], self._held[close + len(end) :]
            calls = _calls(inner)
            if calls is None:
                shown += marker + inner + end
            else:
                self.calls += calls
                self._held = self._held.lstrip("\n")
                self._after_call = not self._held
        keep = next(
            (n for n in range(min(len(marker) - 1, len(self._held)), 0, -1) if self._held.endswith(marker[:n])), 0
        )
        cut = len(self._held) - keep
        shown, self._held = shown + self._held[:cut], self._held[cut:]
        return shown


def _calls(text: str) -> list[ParsedCall] | None:
    """The calls that a text is, or None if it is something else."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    entries = value if isinstance(value, list) else [value]
    calls = [_call(entry) for entry in entries]
    return [call for call in calls if call is not None] if calls and None not in calls else None


def _call(entry: Any) -> ParsedCall | None:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
        return None
    arguments = entry.get("arguments", entry.get("parameters", {}))
    if not isinstance(arguments, dict | str):
        return None
    return ParsedCall(
        entry["name"], arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    )
