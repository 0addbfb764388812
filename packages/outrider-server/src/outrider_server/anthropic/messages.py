"""``/v1/messages`` and ``/v1/messages/count_tokens``."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from outrider_server.answer.parsed import ParsedCall
from outrider_server.answer.parser import AnswerPart
from outrider_server.anthropic.schema import (
    AnthropicErrorResponse,
    CountRequest,
    CountResponse,
    MessagesRequest,
    MessagesResponse,
)
from outrider_server.anthropic.translation import NO_THREADS, chat_request
from outrider_server.dialect import Dialect
from outrider_server.generation import new_id, respond
from outrider_server.http.context import tenant_of
from outrider_server.http.errors import ApiError, json_response
from outrider_server.http.openapi import documented
from outrider_server.http.request_body import json_body
from outrider_server.http.stream import Chunk, StreamFormat
from outrider_server.models import service_of
from outrider_server.openai import statistics
from outrider_server.openai.chat import check_fields, encode_messages, reading_executor, start_chat
from outrider_server.openai.chat_answer import ChatRun

router = APIRouter()

_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def anthropic_error(error: ApiError) -> dict[str, Any]:
    """``{"type": "error", "error": {"type", "message"}}``. The message names the field at fault."""
    kind = _KINDS.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    known = "prompt is too long: " if error.code == "context_length_exceeded" else ""  # agents then shorten it
    details = {"details": {"error_code": NO_THREADS, "unsupported": ["thread"]}} if error.code == NO_THREADS else {}
    return {"type": "error", "error": {"type": kind, "message": known + error.short_message} | details}


EVENTS = StreamFormat(named=True, failure=anthropic_error)


@router.post("/v1/messages", **documented(MessagesRequest, MessagesResponse, error=AnthropicErrorResponse))
async def messages(request: Request, body: Annotated[MessagesRequest, Depends(json_body(MessagesRequest))]) -> Response:
    """Answer a conversation, in Anthropic's words. With ``stream``, as named events."""
    service = await service_of(request, body.model)

    async def start() -> MessagesResponseBuilder:
        template = service.tokenizer.chat_template or ""
        chat = await service.executors.run_if_large(lambda: chat_request(body, template))
        return await start_chat(service, chat, tenant_of(request), MessagesResponseBuilder, id_prefix="msg")

    return await respond(request, start(), stream=bool(body.stream), form=EVENTS)


@router.post("/v1/messages/count_tokens", **documented(CountRequest, CountResponse, error=AnthropicErrorResponse))
async def count_tokens(request: Request, body: Annotated[CountRequest, Depends(json_body(CountRequest))]) -> Response:
    """How many tokens a conversation has; nothing is generated."""
    service = await service_of(request, body.model)
    service.check_model(body.model)

    template = service.tokenizer.chat_template or ""
    chat = await service.executors.run(lambda: chat_request(body, template))
    run = reading_executor(service, chat.messages)
    ids = await run(lambda: encode_messages(service, chat, tools=check_fields(service, chat)))
    return json_response({"input_tokens": len(ids)})


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


@dataclass
class MessagesResponseBuilder(ChatRun):
    """Writes the answer to a message, whole (``full``) or streamed (``chunks``)."""

    def full(self) -> dict[str, Any]:
        content: list[dict[str, Any]] = []
        for part in self.whole():
            if (call := part.call) is not None:
                content.append({"type": "tool_use", "id": new_id("toolu"), "name": call.name, "input": call.as_object})
            elif content and content[-1]["type"] == part.kind:
                content[-1][part.kind] += part.text
            else:
                signature = {"signature": ""} if part.kind == "thinking" else {}
                content.append({"type": part.kind, part.kind: part.text} | signature)
        message = (
            self._message() | {"content": content} | self._end(any(block["type"] == "tool_use" for block in content))
        )
        return message | {"usage": self._usage()} | self._measured()

    async def chunks(self) -> AsyncGenerator[Chunk]:
        """The message, its blocks piece by piece, how it ended."""
        blocks, begun, called = BlockEvents(), False, False
        async with aclosing(self.parsed()) as parsed:
            async for _, parts in parsed:
                if not begun:
                    begun = True
                    ends: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None}
                    yield {"type": "message_start", "message": self._message() | ends | {"usage": self._usage()}}
                for part in parts:
                    called |= part.call is not None
                    for event in blocks.events(part):
                        yield event
        for event in blocks.close():
            yield event
        delta = self._end(called)
        yield {"type": "message_delta", "delta": delta, "usage": self._usage()} | self._measured()
        yield {"type": "message_stop"}

    def _message(self) -> dict[str, Any]:
        generation = self.generation
        return {"id": generation.id, "type": "message", "role": "assistant", "model": generation.model}

    def _usage(self) -> dict[str, int]:
        stats = self.generation.requests[0].stats
        return {
            "input_tokens": stats.prompt_tokens - stats.cached_prompt_tokens,
            "output_tokens": len(self.generation.steps[0]),
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": stats.cached_prompt_tokens,
        }

    def _end(self, called: bool) -> dict[str, Any]:
        request = self.generation.requests[0]
        reason = "end_turn"
        if request.finish_reason == "length":
            reason = "max_tokens"
        elif called:
            reason = "tool_use"
        elif request.written.stop_string is not None:
            reason = "stop_sequence"
        return {"stop_reason": reason, "stop_sequence": request.written.stop_string}

    def _measured(self) -> dict[str, Any]:
        requests = self.generation.requests
        return {"metrics": statistics.metrics(requests), "timings": statistics.timings(requests)}


dialect = Dialect((router,), {"/v1/messages": anthropic_error})
