"""Parts that the answers of OpenAI's endpoints share, whole or streamed."""

from __future__ import annotations

from typing import Any

from outrider_server.generation import Generation
from outrider_server.openai.schema.base import SamplingRequest


def wants_obfuscation(body: SamplingRequest) -> bool:
    """Whether the client asked for padded events (``include_obfuscation``)."""
    return bool(body.stream_options and body.stream_options.include_obfuscation)


def wants_usage(body: SamplingRequest) -> bool:
    """Whether a stream ends with a chunk of its own for the usage."""
    return bool(body.stream_options and body.stream_options.include_usage)


def running_usage(body: SamplingRequest, generation: Generation, n: int, *, completion: bool = True) -> dict[str, Any]:
    """The usage of a chunk: null until the end, or vLLM's running count; nothing if it is not asked for.

    ``completion=False``: generated tokens are not shown and do not count.
    """
    if not wants_usage(body):
        return {}
    if body.stream_options is None or not body.stream_options.continuous_usage_stats:
        return {"usage": None}
    prompt = sum(request.prompt_length for request in generation.requests[::n])
    made = sum(len(steps) for steps in generation.steps) if completion else 0
    return {"usage": {"prompt_tokens": prompt, "completion_tokens": made, "total_tokens": prompt + made}}


def envelope(generation: Generation, kind: str) -> dict[str, Any]:
    """The fields that every answer, and every chunk of one, begins with."""
    return {
        "id": generation.id,
        "object": kind,
        "created": generation.created,
        "model": generation.model,
        "system_fingerprint": generation.service.fingerprint,
    }
