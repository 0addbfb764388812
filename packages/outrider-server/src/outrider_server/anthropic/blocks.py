"""The parts of an answer as events of content blocks, one block open at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from outrider_server.answer.parser import AnswerPart
from outrider_server.answer.tool_calls import ParsedCall
from outrider_server.generation import new_id

_DELTAS = {"text": "text_delta", "thinking": "thinking_delta"}


class BlockEvents:
    """Opens a block where the kind of part changes; a call is a block of its own."""

    def __init__(self) -> None:
        self._count = 0
        self._kind = ""

    def events(self, part: AnswerPart) -> Iterator[dict[str, Any]]:
        """The events for one part."""
        if part.call is not None:
            yield from self._call(part.call)
            return
        if self._kind != part.kind:
            yield from self.close()
            signature = {"signature": ""} if part.kind == "thinking" else {}
            yield self._open({"type": part.kind, part.kind: ""} | signature)
            self._kind = part.kind
        yield self._delta({"type": _DELTAS[part.kind], part.kind: part.text})

    def close(self) -> Iterator[dict[str, Any]]:
        """The end of the open block, if there is one."""
        if self._kind:
            self._kind = ""
            yield {"type": "content_block_stop", "index": self._count - 1}

    def _call(self, call: ParsedCall) -> Iterator[dict[str, Any]]:
        yield from self.close()
        yield self._open({"type": "tool_use", "id": new_id("toolu"), "name": call.name, "input": {}})
        self._kind = "tool_use"
        yield self._delta({"type": "input_json_delta", "partial_json": call.arguments})
        yield from self.close()

    def _open(self, block: dict[str, Any]) -> dict[str, Any]:
        self._count += 1
        return {"type": "content_block_start", "index": self._count - 1, "content_block": block}

    def _delta(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": self._count - 1, "delta": delta}
