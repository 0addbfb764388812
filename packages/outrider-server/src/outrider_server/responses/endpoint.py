"""``/v1/responses``."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from outrider.engine.request import StepOutput
from outrider_server.answer.parser import AnswerPart
from outrider_server.dialect import Dialect
from outrider_server.generation import LONG, respond
from outrider_server.http.context import tenant_of
from outrider_server.http.errors import ApiError
from outrider_server.http.openapi import documented
from outrider_server.http.request_body import json_body
from outrider_server.http.stream import Chunk, Frame, StreamFormat
from outrider_server.models import service_of
from outrider_server.openai import statistics
from outrider_server.openai.chat import start_chat
from outrider_server.openai.chat_answer import ChatRun
from outrider_server.openai.logprobs import chat_logprobs
from outrider_server.responses.items import OutputItems
from outrider_server.responses.schema import ResponsesRequest, ResponsesResponse
from outrider_server.responses.translation import chat_request, namespaces

router = APIRouter()


def _failure(error: ApiError) -> dict[str, Any]:
    own = error.body()["error"]
    return {"type": "error", "code": own["code"], "message": own["message"], "param": own["param"]}


EVENTS = StreamFormat(named=True, failure=_failure)


@router.post("/v1/responses", **documented(ResponsesRequest, ResponsesResponse))
async def responses(
    request: Request, body: Annotated[ResponsesRequest, Depends(json_body(ResponsesRequest))]
) -> Response:
    """Answer an input. With ``stream``, as named events. Nothing is kept: there is no response to come back to."""
    service = await service_of(request, body.model)
    padded = bool(body.stream_options and body.stream_options.include_obfuscation)

    async def start() -> ResponsesBuilder:
        chat = await service.executors.run_if_large(lambda: chat_request(body))
        make = partial(ResponsesBuilder, asked=body)
        return await start_chat(service, chat, tenant_of(request), make, id_prefix="resp")

    return await respond(request, start(), stream=bool(body.stream), obfuscate=padded, form=EVENTS)


@dataclass
class ResponsesBuilder(ChatRun):
    """Writes a response, whole (``full``) or as events (``chunks``)."""

    asked: ResponsesRequest = field(kw_only=True)
    _count: int = 0
    _logprobs: list[Any] = field(default_factory=list)  # of tokens whose text has not been shown

    def __post_init__(self) -> None:
        self.items = OutputItems(namespaces(self.asked))

    def full(self) -> dict[str, Any]:
        for _ in self._events(self.whole(), self.generation.steps[0], end=True):
            pass
        return self._end()["response"]  # type: ignore[no-any-return]

    async def chunks(self) -> AsyncGenerator[Chunk]:
        """How it begins, its items piece by piece, and the whole at the end."""
        begun = False
        async with aclosing(self.parsed()) as parsed:
            async for steps, parts in parsed:
                if not begun:
                    begun = True
                    for kind in ("created", "in_progress"):
                        opening = {"type": f"response.{kind}", "response": self._response("in_progress")}
                        yield await self._written(opening)
                for event in self._events(parts, steps, end=steps[-1].finish_reason is not None):
                    yield self._numbered(event)
        for event in self.items.close(self._status()):
            yield await self._written(event)
        yield await self._written(self._end())

    async def _written(self, event: dict[str, Any]) -> Chunk:
        """An event that repeats the request, or the whole answer: a long one is not written on the event loop."""
        numbered, executors = self._numbered(event), self.service.executors

        def write() -> Frame:
            return Frame(EVENTS.event(numbered))

        return await (executors.run(write) if self.generation.size > LONG else executors.run_if_large(write))

    def _events(
        self, parts: Sequence[AnswerPart], steps: Sequence[StepOutput], *, end: bool
    ) -> Iterator[dict[str, Any]]:
        """The events for parts. Log-probabilities of ``steps`` go with the first text that follows."""
        if self.body.logprobs:
            top = self.body.top_logprobs or 0
            self._logprobs += chat_logprobs(steps, self.service.tokenizer, top)
        for part in parts:
            own = self._logprobs if part.kind == "text" else []
            yield from self.items.add(part, own)
            self._logprobs = []
        if end and self._logprobs:  # those of the last tokens, which may show nothing
            yield from self.items.add(AnswerPart("text"), self._logprobs)

    def _numbered(self, event: dict[str, Any]) -> dict[str, Any]:
        self._count += 1
        return event | {"sequence_number": self._count - 1}

    def _status(self) -> str:
        return "incomplete" if self.generation.requests[0].finish_reason == "length" else "completed"

    def _end(self) -> dict[str, Any]:
        status, requests = self._status(), self.generation.requests
        for _ in self.items.close(status):
            pass
        measured = {"metrics": statistics.metrics(requests), "timings": statistics.timings(requests)}
        reason = {"reason": "max_output_tokens"} if status == "incomplete" else None
        end = {"output": self.items.items, "usage": self._usage(), "incomplete_details": reason}
        return {"type": f"response.{status}", "response": self._response(status) | end | measured}

    def _response(self, status: str) -> dict[str, Any]:
        """The fields of the request, as OpenAI repeats them."""
        generation, body = self.generation, self.asked
        params = generation.requests[0].params
        form = body.text.format if body.text else None
        shown = {"type": "text"} if form is None else form.model_dump(by_alias=True, exclude_none=True)
        return {
            "id": generation.id,
            "object": "response",
            "created_at": generation.created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "model": generation.model,
            "output": [],
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {"effort": body.reasoning.effort if body.reasoning else None, "summary": None},
            "seed": generation.requests[0].seed,
            "store": False,
            "system_fingerprint": generation.service.fingerprint,
            "temperature": params.temperature,
            "text": {"format": shown},
            "tool_choice": "auto" if body.tool_choice is None else _plain(body.tool_choice),
            "tools": [_plain(tool) for tool in body.tools or ()],
            "top_p": params.top_p,
            "truncation": "disabled",
            "usage": None,
            "metadata": body.metadata or {},
        }

    def _usage(self) -> dict[str, Any]:
        stats = self.generation.requests[0].stats
        return {
            "input_tokens": stats.prompt_tokens,
            "input_tokens_details": {"cached_tokens": stats.cached_prompt_tokens, "cache_write_tokens": 0},
            "output_tokens": stats.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": self.num_thinking_tokens()},
            "total_tokens": stats.prompt_tokens + stats.completion_tokens,
        }


def _plain(value: Any) -> Any:
    return value if isinstance(value, str) else {"strict": None, **value.model_dump()}


dialect = Dialect((router,))
