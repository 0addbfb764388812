"""Fields that all responses share: usage, speculation metrics, timings."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, Any]
    completion_tokens_details: dict[str, Any] | None = None


class SpeculativeDecoding(BaseModel):
    mean_acceptance_length: float | None
    draft_acceptance_rate: float | None
    acceptance_histogram: list[int]
    acceptance_by_position: list[float]
    num_spec_steps: int
    num_draft_tokens: int
    num_accepted_draft_tokens: int


class SpeculationMetrics(BaseModel):
    speculative_decoding: SpeculativeDecoding


class Timings(BaseModel):
    """In llama.cpp's words. Times are sums over all sequences of the request, in milliseconds."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_second: float | None
    predicted_n: int
    predicted_ms: float
    predicted_per_second: float | None
    draft_n: int
    draft_n_accepted: int
