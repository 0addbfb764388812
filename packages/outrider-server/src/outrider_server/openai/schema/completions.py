"""``/v1/completions``: texts to continue."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from outrider_server.openai.schema.base import SamplingRequest, SpeculationMetrics, Text, Timings, TokenId, Usage
from outrider_server.openai.schema.strict import List

Ids = Annotated[List[TokenId], Field(min_length=1)]


class CompletionRequest(SamplingRequest):
    prompt: Text | Ids | Annotated[List[Text | Ids], Field(min_length=1)] = Field(
        description="Text, token ids, or a list of either."
    )
    max_tokens: int | None = Field(None, ge=0, lt=2**31, description="16 if left out; 0 only with echo.")
    best_of: int | None = Field(None, ge=1, le=128, description="Make so many, give the n likeliest per token.")
    echo: bool | None = None
    logprobs: int | None = Field(None, ge=0, le=20)
    suffix: Text | None = None
    response_format: dict[str, Any] | None = None
    add_special_tokens: bool | None = None


class CompletionChoice(BaseModel):
    index: int
    text: str
    logprobs: dict[str, Any] | None
    finish_reason: Literal["stop", "length"] | None
    seed: int
    score: float | None = Field(None, description="Of a beam: log-probability / tokens ** length_penalty.")


class CompletionResponse(BaseModel):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage
    metrics: SpeculationMetrics
    timings: Timings
