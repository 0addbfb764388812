"""Fields that answers share: envelope, usage, speculation metrics and timings, over all sequences of a request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from outrider.engine.request import Request
from outrider_server.generation import Generation
from outrider_server.openai.schema.base import SamplingRequest


def usage_and_timings(
    requests: Sequence[Request], n: int, *, usage: bool = True, completion: bool = True
) -> dict[str, Any]:
    """The cost fields of an answer, or of a stream's last chunk: usage (if asked for), metrics and timings."""
    measured = {"metrics": metrics(requests), "timings": timings(requests)}
    return {"usage": usage_of(requests, n, completion=completion)} | measured if usage else measured


def usage_of(requests: Sequence[Request], n: int, *, completion: bool = True) -> dict[str, Any]:
    """OpenAI's ``usage``; ``n`` neighbours share one prompt, which counts once.

    ``completion=False``: the tokens made are not shown, and do not count.
    """
    prompts = [request.stats for request in requests[::n]]
    prompt_tokens = sum(stats.prompt_tokens for stats in prompts)
    made = sum(request.stats.completion_tokens for request in requests) if completion else 0
    result: dict[str, Any] = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": made,
        "total_tokens": prompt_tokens + made,
        "prompt_tokens_details": {"cached_tokens": sum(stats.cached_prompt_tokens for stats in prompts)},
    }
    if any("prediction" in request.speculation.combination.names for request in requests):
        accepted = sum(request.stats.accepted_by["prediction"] for request in requests)
        drafted = sum(request.stats.drafted_by["prediction"] for request in requests)
        result["completion_tokens_details"] = {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": drafted - accepted,
        }
    return result


def metrics(requests: Sequence[Request]) -> dict[str, Any]:
    """vLLM's ``metrics.speculative_decoding``.

    ``acceptance_histogram[i]``: drafts of which exactly i tokens were accepted.
    """
    stats = [request.stats for request in requests]
    kept = Counter(accepted for s in stats for drafted, accepted in s.rounds if drafted)
    drafted_at = sum((s.drafted_at for s in stats), Counter[int]())
    accepted_at = sum((s.accepted_at for s in stats), Counter[int]())
    drafted = sum(s.num_draft_tokens for s in stats)
    accepted = sum(s.num_accepted_draft_tokens for s in stats)
    runs = sum(s.target_runs for s in stats)
    return {
        "speculative_decoding": {
            "mean_acceptance_length": _ratio(sum(s.completion_tokens for s in stats), runs),
            "draft_acceptance_rate": _ratio(accepted, drafted),
            "acceptance_histogram": [kept[i] for i in range(max(kept, default=-1) + 1)],
            "acceptance_by_position": [round(accepted_at[i] / drafted_at[i], 4) for i in sorted(drafted_at)],
            "num_spec_steps": sum(s.num_drafts for s in stats),
            "num_draft_tokens": drafted,
            "num_accepted_draft_tokens": accepted,
        }
    }


def timings(requests: Sequence[Request]) -> dict[str, Any]:
    """llama.cpp's ``timings``; ``prompt_n`` are prompt tokens that had to be read."""
    stats = [request.stats for request in requests]
    cached = sum(s.cached_prompt_tokens for s in stats)
    reading, decoding = sum(s.prefill_s for s in stats), sum(s.decode_s for s in stats)
    read = sum(s.prompt_tokens for s in stats) - cached
    predicted = sum(s.completion_tokens for s in stats)
    return {
        "cache_n": cached,
        "prompt_n": read,
        "prompt_ms": round(1000 * reading, 3),
        "prompt_per_second": round(read / reading, 3) if reading > 0 else None,
        "predicted_n": predicted,
        "predicted_ms": round(1000 * decoding, 3),
        "predicted_per_second": round(predicted / decoding, 3) if decoding > 0 else None,
        "draft_n": sum(s.num_draft_tokens for s in stats),
        "draft_n_accepted": sum(s.num_accepted_draft_tokens for s in stats),
    }


def _ratio(part: float, whole: float) -> float | None:
    return round(part / whole, 4) if whole else None


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
