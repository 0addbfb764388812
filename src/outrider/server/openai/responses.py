"""From a checked request to its answer, whole or streamed: what all endpoints that generate have in common."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response

from outrider.config import SamplingParams
from outrider.errors import InvalidRequestError
from outrider.server.http.errors import json_response
from outrider.server.http.stream import Chunk, EventStream, unless_gone
from outrider.server.openai import options
from outrider.server.openai.schema.base import SamplingRequest
from outrider.server.openai.structured_output import refusal
from outrider.server.service import Generation, Service, generation


class Job(Protocol):
    """A checked request and how its answer is written."""

    generation: Generation

    def whole(self) -> Any: ...

    def chunks(self) -> AsyncGenerator[Chunk]: ...


async def answer(
    request: Request, work: Coroutine[Any, Any, Job], *, stream: bool, obfuscate: bool = False, done: bool = True
) -> Response:
    """Wait for the job that ``work`` makes and answer with it; a client that goes takes everything with it.

    ``done``: streams end with ``[DONE]``.
    """
    job = await unless_gone(request, work)
    service, lease = job.generation.service, job.generation.lease
    if stream:
        settings, metrics = service.settings, service.metrics
        return EventStream(job.chunks(), settings, metrics, obfuscate=obfuscate, done=done, on_end=lease.release)
    try:
        await unless_gone(request, job.generation.complete())
    finally:
        lease.release()  # also if the client was gone before anything ran
    return json_response(job.whole())


async def started(
    service: Service,
    body: SamplingRequest,
    prompts: Callable[[], Sequence[list[int]]],
    params: SamplingParams,
    *,
    count: int = 1,
    prefix: str,
    model: str,
) -> Generation:
    """The sequences of a request of OpenAI's, checked and admitted; errors bear the names of its fields."""
    speculation = options.speculation(body, service.engine.llm.speculation)
    queue = options.scheduling(body)
    try:
        return await generation(
            service, prompts, count, params, speculation, prefix=prefix, model=model, scheduling=queue
        )
    except InvalidRequestError as error:
        raise refusal(error, body) from None


def obfuscated(body: SamplingRequest) -> bool:
    """Whether a client of OpenAI's asked for padding."""
    return bool(body.stream_options and body.stream_options.include_obfuscation)


def wants_usage(body: SamplingRequest) -> bool:
    """Whether a stream ends with a chunk of its own for the usage."""
    return bool(body.stream_options and body.stream_options.include_usage)


def usage_so_far(body: SamplingRequest, generation: Generation, n: int, *, completion: bool = True) -> dict[str, Any]:
    """The usage of a chunk: null until the end, or vLLM's running count; nothing if it is not asked for.

    ``completion=False``: the tokens made are not shown, and do not count.
    """
    if not wants_usage(body):
        return {}
    if body.stream_options is None or not body.stream_options.continuous_usage_stats:
        return {"usage": None}
    prompt = sum(request.prompt_length for request in generation.requests[::n])
    made = sum(len(steps) for steps in generation.steps) if completion else 0
    return {"usage": {"prompt_tokens": prompt, "completion_tokens": made, "total_tokens": prompt + made}}


def head(generation: Generation, kind: str) -> dict[str, Any]:
    """What every answer of OpenAI's, and every chunk of one, begins with."""
    return {
        "id": generation.id,
        "object": kind,
        "created": generation.created,
        "model": generation.model,
        "system_fingerprint": generation.service.fingerprint,
    }
