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
from outrider.server.http.errors import invalid
from outrider.server.http.openapi import documented
from outrider.server.http.request_body import body_of
from outrider.server.http.stream import Chunk
from outrider.server.openai import options, statistics
from outrider.server.openai.conversation import encode_messages
from outrider.server.openai.logprobs import chat_content
from outrider.server.openai.responses import answer, head, obfuscated, started, usage_so_far, wants_usage
from outrider.server.openai.schema.chat import ChatRequest, ChatResponse, NamedTool
from outrider.server.openai.structured_output import forced_call, structured
from outrider.server.openai.tokens import details
from outrider.server.openai.tools import ToolParser, form_of
from outrider.server.service import Generation, Service, new_id

router = APIRouter()


@router.post("/v1/chat/completions", **documented(ChatRequest, ChatResponse))
@router.post("/chat/completions", include_in_schema=False)
async def chat(request: Request, body: Annotated[ChatRequest, Depends(body_of(ChatRequest))]) -> Response:
    """Answer a conversation. With ``stream``, as server-sent events that end with ``[DONE]``."""
    service: Service = request.app.state.service
    return await answer(request, _job(service, body), stream=bool(body.stream), obfuscate=obfuscated(body))


async def _job(service: Service, body: ChatRequest) -> Job:
    model = service.check_model(body.model)
    with_tools = _check(service, body)
    limits = [body.max_completion_tokens, body.max_tokens, service.settings.max_tokens, service.max_seq_len]
    params = options.sampling(
        body,
        max_tokens=min(limit for limit in limits if limit is not None),
        n=body.n or 1,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        structured=_form(body),
    )
    tokenizer = service.tokenizer
    running = await started(
        service,
        body,
        lambda: [encode_messages(tokenizer, body, tools=with_tools)],
        params,
        prefix="chatcmpl",
        model=model,
    )
    return Job(service, running, body, with_tools)


def _form(body: ChatRequest) -> StructuredOutput | None:
    """What the answer must look like: as asked for, or the tool call that is forced."""
    form = structured(body, body.response_format)
    if body.tool_choice in (None, "auto", "none"):
        return form
    if form is not None:
        raise invalid("a forced tool call leaves no room for another form: give one of them", "tool_choice")
    name = body.tool_choice.function.name if isinstance(body.tool_choice, NamedTool) else None
    return forced_call(body.tools or (), name)


def _check(service: Service, body: ChatRequest) -> bool:
    """Whether tools are in play. Raises ApiError for fields that contradict each other."""
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
class _Reply:
    """One choice as it grows: text to show, calls that are complete."""

    parser: ToolParser | None
    began: bool = False
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
class Job:
    """A checked request and how its answer is written."""

    service: Service
    generation: Generation
    body: ChatRequest
    with_tools: bool
    _replies: dict[int, _Reply] = field(default_factory=dict)

    def whole(self) -> dict[str, Any]:
        requests = self.generation.requests
        choices = [self._choice(index) for index in range(len(requests))]
        return (
            head(self.generation, "chat.completion") | {"choices": choices} | statistics.whole(requests, len(requests))
        )

    async def chunks(self) -> AsyncGenerator[Chunk]:
        """The role, then an event for each step of each choice; the last has the statistics, or one of its own."""
        with_usage = wants_usage(self.body)
        begin = head(self.generation, "chat.completion.chunk")
        requests = self.generation.requests
        running = len(requests)
        async with aclosing(self.generation.bursts()) as bursts:
            async for index, steps in bursts:
                usage = usage_so_far(self.body, self.generation, len(requests))
                if not self._reply(index).began:
                    self._reply(index).began = True
                    yield begin | usage | {"choices": [self._opening(index)]}
                for choice in self._parts(index, steps):
                    running -= choice["finish_reason"] is not None
                    end = {} if running or with_usage else statistics.whole(requests, len(requests), usage=False)
                    yield begin | usage | {"choices": [choice]} | end
        if with_usage:
            yield begin | {"choices": []} | statistics.whole(requests, len(requests))

    def _reply(self, index: int) -> _Reply:
        if index not in self._replies:
            forced = self.body.tool_choice not in (None, "auto", "none")  # then it is bare JSON
            mark = None if forced else form_of(self.service.tokenizer.chat_template or "")
            self._replies[index] = _Reply(ToolParser(mark) if self.with_tools else None)
        return self._replies[index]

    def _choice(self, index: int) -> dict[str, Any]:
        request, steps = self.generation.requests[index], self.generation.steps[index]
        text, calls = self._reply(index).push("".join(step.text for step in steps), end=True)
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
        return choice | details(self.service.tokenizer, self.body, request, steps, opening=True)

    def _opening(self, index: int) -> dict[str, Any]:
        delta = {"role": "assistant", "content": "", "refusal": None}
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        request = self.generation.requests[index]
        told = details(self.service.tokenizer, self.body, request, [], opening=True)
        return choice | {"seed": request.seed} | told

    def _parts(self, index: int, steps: Sequence[StepOutput]) -> list[dict[str, Any]]:
        """The events of one step: what it adds, then, if it is the last, how the choice ended."""
        request, reply = self.generation.requests[index], self._reply(index)
        finish = steps[-1].finish_reason
        text, calls = reply.push("".join(step.text for step in steps), end=finish is not None)
        told = details(self.service.tokenizer, self.body, request, steps, opening=False)
        delta: dict[str, Any] = {"content": text} if text or not calls else {}
        if calls:
            delta["tool_calls"] = calls
        parts = []
        logprobs = self._logprobs(steps)
        if text or calls or logprobs or told:
            parts.append({"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None} | told)
        if finish is not None:
            reason = "tool_calls" if reply.calls and finish == "stop" else finish
            parts.append({"index": index, "delta": {}, "logprobs": None, "finish_reason": reason})
        return parts

    def _logprobs(self, steps: Sequence[StepOutput]) -> dict[str, Any] | None:
        if not self.body.logprobs:
            return None
        content = chat_content(steps, self.service.tokenizer, self.body.top_logprobs or 0)
        return {"content": content, "refusal": None}


def _without_index(call: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in call.items() if key != "index"}
