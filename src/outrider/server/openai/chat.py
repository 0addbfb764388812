"""``/v1/chat/completions``."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from outrider.config.structured import StructuredOutput
from outrider.engine.request import StepOutput
from outrider.server.generation import Generation, new_id, respond
from outrider.server.http.callers import tenant_of
from outrider.server.http.errors import invalid
from outrider.server.http.openapi import documented
from outrider.server.http.request_body import json_body
from outrider.server.http.stream import Chunk
from outrider.server.openai import options
from outrider.server.openai.conversation import encode_messages
from outrider.server.openai.logprobs import chat_logprobs
from outrider.server.openai.responses import envelope, running_usage, wants_obfuscation, wants_usage
from outrider.server.openai.schema.chat import ChatRequest, ChatResponse, NamedTool
from outrider.server.openai.statistics import usage_and_timings
from outrider.server.openai.structured_output import field_names, forced_tool_call, structured_output
from outrider.server.openai.tokens import token_fields
from outrider.server.openai.tools import ToolParser, opening_marker
from outrider.server.service import Service

router = APIRouter()


@router.post("/v1/chat/completions", **documented(ChatRequest, ChatResponse))
@router.post("/chat/completions", include_in_schema=False)
async def chat(request: Request, body: Annotated[ChatRequest, Depends(json_body(ChatRequest))]) -> Response:
    """Answer a conversation. With ``stream``, as server-sent events that end with ``[DONE]``."""
    service: Service = request.app.state.service
    return await respond(
        request, _start(service, body, tenant_of(request)), stream=bool(body.stream), obfuscate=wants_obfuscation(body)
    )


async def _start(service: Service, body: ChatRequest, tenant: str) -> ChatResponseBuilder:
    """Check the request and start its sequences."""
    model = service.check_model(body.model)
    with_tools = _check_fields(service, body)
    limits = [body.max_completion_tokens, body.max_tokens, service.settings.max_tokens, service.max_seq_len]
    params = await service.off_loop.run_if_large(
        lambda: options.sampling(
            body,
            max_tokens=min(limit for limit in limits if limit is not None),
            n=body.n or 1,
            logprobs=(body.top_logprobs or 0) if body.logprobs else None,
            structured=_structured_output(body),
        )
    )
    with field_names(body):
        generation = await Generation.start(
            service,
            lambda: [encode_messages(service, body, tools=with_tools)],
            params,
            options.speculation(body, service.engine.llm.speculation),
            id_prefix="chatcmpl",
            model=model,
            reports_drafts=bool(body.draft_details),
            **options.scheduling(service, body, tenant),
        )
    return ChatResponseBuilder(service, generation, body, with_tools)


def _structured_output(body: ChatRequest) -> StructuredOutput | None:
    """What the answer must match: the form the request gives, or a forced tool call."""
    wanted = structured_output(body, body.response_format)
    if body.tool_choice in (None, "auto", "none"):
        return wanted
    if wanted is not None:
        raise invalid("a forced tool call leaves no room for another form: give one of them", "tool_choice")
    name = body.tool_choice.function.name if isinstance(body.tool_choice, NamedTool) else None
    return forced_tool_call(body.tools or (), name)


def _check_fields(service: Service, body: ChatRequest) -> bool:
    """Whether the model is told of tools. Raises ApiError for fields that contradict each other."""
    n, limit = body.n or 1, service.settings.max_n
    if n > limit:
        raise invalid(f"n={n} outputs of one prompt: ask for at most {limit}", "n")
    if body.top_logprobs is not None and not body.logprobs:
        raise invalid("top_logprobs needs logprobs: set it to true", "top_logprobs")
    if None not in (body.max_tokens, body.max_completion_tokens) and body.max_tokens != body.max_completion_tokens:
        raise invalid("max_tokens and max_completion_tokens differ: give one", "max_tokens")
    options.check_stream_options(body)
    if body.parallel_tool_calls is False and body.tools:
        raise invalid("parallel_tool_calls=false is not supported: leave it out", "parallel_tool_calls", "unsupported")
    choice = body.tool_choice
    if choice in (None, "auto", "none"):
        if choice == "auto" and not body.tools:
            raise invalid("tool_choice needs tools: give some, or leave it out", "tool_choice")
        return bool(body.tools) and choice != "none"
    if isinstance(choice, NamedTool):
        known = [tool.function.name for tool in body.tools or ()]
        if choice.function.name not in known:
            raise invalid(f"tool_choice names {choice.function.name[:64]!r}, which is not in tools", "tool_choice")
    if not body.tools:
        raise invalid("tool_choice needs tools: give some, or leave it out", "tool_choice")
    return True


@dataclass
class _ChoiceState:
    """What one choice has sent so far."""

    parser: ToolParser | None
    opened: bool = False  # its first chunk, with the role, is out
    calls: int = 0

    def push(self, text: str, *, end: bool) -> tuple[str, list[dict[str, Any]]]:
        """(text to show, tool calls that are now complete), given the text of one step."""
        if self.parser is None:
            return text, []
        shown = self.parser.push(text) + (self.parser.flush() if end else "")
        fresh = self.parser.calls[self.calls :]
        calls = [
            {
                "index": index,
                "id": new_id("call"),
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for index, call in enumerate(fresh, self.calls)
        ]
        self.calls += len(calls)
        return shown, calls


@dataclass
class ChatResponseBuilder:
    """Writes the answer to a chat completion, whole (``full``) or streamed (``chunks``)."""

    service: Service
    generation: Generation
    body: ChatRequest
    with_tools: bool
    _choices: dict[int, _ChoiceState] = field(default_factory=dict)

    def full(self) -> dict[str, Any]:
        requests = self.generation.requests
        choices = [self._choice(index) for index in range(len(requests))]
        statistics = usage_and_timings(requests, len(requests))
        return envelope(self.generation, "chat.completion") | {"choices": choices} | statistics

    async def chunks(self) -> AsyncGenerator[Chunk]:
        """The role, then an event for each step of each choice; the last has the statistics, or one of its own."""
        with_usage = wants_usage(self.body)
        begin = envelope(self.generation, "chat.completion.chunk")
        requests = self.generation.requests
        running = len(requests)
        async with aclosing(self.generation.bursts()) as bursts:
            async for index, steps in bursts:
                usage = running_usage(self.body, self.generation, len(requests))
                if not self._state(index).opened:
                    self._state(index).opened = True
                    yield begin | usage | {"choices": [self._first_delta(index)]}
                for choice in self._deltas(index, steps):
                    running -= choice["finish_reason"] is not None
                    end = {} if running or with_usage else usage_and_timings(requests, len(requests), usage=False)
                    yield begin | usage | {"choices": [choice]} | end
        if with_usage:
            yield begin | {"choices": []} | usage_and_timings(requests, len(requests))

    def _state(self, index: int) -> _ChoiceState:
        if index not in self._choices:
            forced = self.body.tool_choice not in (None, "auto", "none")  # then it is bare JSON
            marker = None if forced else opening_marker(self.service.tokenizer.chat_template or "")
            self._choices[index] = _ChoiceState(ToolParser(marker) if self.with_tools else None)
        return self._choices[index]

    def _choice(self, index: int) -> dict[str, Any]:
        request, steps = self.generation.requests[index], self.generation.steps[index]
        text, calls = self._state(index).push("".join(step.text for step in steps), end=True)
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if calls:
            message |= {"content": text or None, "tool_calls": [_without_index(call) for call in calls]}
        choice = {
            "index": index,
            "message": message,
            "logprobs": self._logprobs(steps),
            "finish_reason": "tool_calls" if calls and request.finish_reason == "stop" else request.finish_reason,
            "seed": request.seed,
        }
        return choice | token_fields(self.service.tokenizer, self.body, request, steps, opening=True)

    def _first_delta(self, index: int) -> dict[str, Any]:
        delta = {"role": "assistant", "content": "", "refusal": None}
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        request = self.generation.requests[index]
        extra = token_fields(self.service.tokenizer, self.body, request, [], opening=True)
        return choice | {"seed": request.seed} | extra

    def _deltas(self, index: int, steps: Sequence[StepOutput]) -> list[dict[str, Any]]:
        """The events of one step: what it adds, then, if it is the last, how the choice ended."""
        request, state = self.generation.requests[index], self._state(index)
        finish = steps[-1].finish_reason
        text, calls = state.push("".join(step.text for step in steps), end=finish is not None)
        extra = token_fields(self.service.tokenizer, self.body, request, steps, opening=False)
        delta: dict[str, Any] = {"content": text} if text or not calls else {}
        if calls:
            delta["tool_calls"] = calls
        deltas = []
        logprobs = self._logprobs(steps)
        if text or calls or logprobs or extra:
            deltas.append({"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None} | extra)
        if finish is not None:
            reason = "tool_calls" if state.calls and finish == "stop" else finish
            deltas.append({"index": index, "delta": {}, "logprobs": None, "finish_reason": reason})
        return deltas

    def _logprobs(self, steps: Sequence[StepOutput]) -> dict[str, Any] | None:
        if not self.body.logprobs:
            return None
        content = chat_logprobs(steps, self.service.tokenizer, self.body.top_logprobs or 0)
        return {"content": content, "refusal": None}


def _without_index(call: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in call.items() if key != "index"}
