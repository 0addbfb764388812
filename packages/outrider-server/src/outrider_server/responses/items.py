"""The parts of an answer as output items, and as the events that tell of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from outrider_server.answer.parsed import ParsedCall
from outrider_server.answer.parser import AnswerPart
from outrider_server.generation import new_id

Event = dict[str, Any]
_PREFIXES = {"thinking": "rs", "text": "msg"}
_NAMES = {"thinking": "response.reasoning_text", "text": "response.output_text"}


class OutputItems:
    """Items so far, of which the last may be open: ``item`` is closed where the kind of part changes."""

    def __init__(self, namespaces: Mapping[str, tuple[str, str]]) -> None:
        """``namespaces``: (name, namespace) of functions that have one, by the names that the model writes."""
        self._namespaces = namespaces
        self.items: list[dict[str, Any]] = []
        self._kind = ""  # of the open item

    def add(self, part: AnswerPart, logprobs: list[Any] | None = None) -> Iterator[Event]:
        """Events that tell of one part."""
        if part.call is not None:
            yield from self.close("completed")
            yield from self._call(part.call)
            return
        if part.kind != self._kind:
            yield from self.close("completed")
            yield from self._open(part.kind)
        own = self._content()
        own["text"] += part.text
        more: Event = {} if part.kind == "thinking" else {"logprobs": logprobs or []}
        if more:
            own["logprobs"] += more["logprobs"]
        yield {"type": f"{_NAMES[part.kind]}.delta", **self._place(), "delta": part.text} | more

    def close(self, status: str) -> Iterator[Event]:
        """The end of the open item, if there is one."""
        if not self._kind:
            return
        kind, item, content = self._kind, self.items[-1], self._content()
        self._kind = ""
        item["status"] = status
        more: Event = {} if kind == "thinking" else {"logprobs": content["logprobs"]}
        yield {"type": f"{_NAMES[kind]}.done", **self._place(), "text": content["text"]} | more
        yield {"type": "response.content_part.done", **self._place(), "part": content}
        yield {"type": "response.output_item.done", "output_index": len(self.items) - 1, "item": item}

    def _open(self, kind: str) -> Iterator[Event]:
        item: dict[str, Any] = {"id": new_id(_PREFIXES[kind]), "status": "in_progress"}
        if kind == "thinking":
            part: dict[str, Any] = {"type": "reasoning_text", "text": ""}
            item |= {"type": "reasoning", "summary": []}
        else:
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            item |= {"type": "message", "role": "assistant"}
        self._kind = kind
        self.items.append(item)
        opened = item | {"content": []}
        yield {"type": "response.output_item.added", "output_index": len(self.items) - 1, "item": opened}
        item["content"] = [part]
        yield {"type": "response.content_part.added", **self._place(), "part": dict(part)}

    def _call(self, call: ParsedCall) -> Iterator[Event]:
        name, namespace = self._namespaces.get(call.name, (call.name, None))
        item = {"id": new_id("fc"), "type": "function_call", "call_id": call.id or new_id("call"), "name": name}
        if namespace is not None:
            item["namespace"] = namespace
        index = len(self.items)
        self.items.append(item | {"arguments": call.arguments, "status": "completed"})
        opened = item | {"arguments": "", "status": "in_progress"}
        yield {"type": "response.output_item.added", "output_index": index, "item": opened}
        place = {"item_id": item["id"], "output_index": index}
        yield {"type": "response.function_call_arguments.delta", **place, "delta": call.arguments}
        done = {"name": name, "arguments": call.arguments}
        yield {"type": "response.function_call_arguments.done", **place} | done
        yield {"type": "response.output_item.done", "output_index": index, "item": self.items[-1]}

    def _content(self) -> dict[str, Any]:
        content: dict[str, Any] = self.items[-1]["content"][0]
        return content

    def _place(self) -> Event:
        return {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1, "content_index": 0}
