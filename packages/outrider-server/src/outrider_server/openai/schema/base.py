"""Fields that requests and responses share: sampling and speculation options, usage, metrics, timings."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from outrider_server.openai.schema.speculation import SpeculationOptions
from outrider_server.openai.schema.strict import List, OnlyFalse, StrictModel, at_most

MAX_STOPS = 16
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Text = Annotated[str, Field(max_length=8 << 20)]
Stop = Annotated[str, Field(max_length=4096)]
Stops = Annotated[List[Stop], Field(max_length=MAX_STOPS)]
TokenName = Annotated[str, Field(max_length=16)]
Bias = Annotated[float, Field(ge=-100, le=100)]
Penalty = Annotated[float, Field(ge=-2, le=2)]


class StreamOptions(StrictModel):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = Field(None, description="vLLM's: usage so far in every chunk.")
    include_obfuscation: bool | None = Field(None, description="Pad events with characters of no meaning.")


class PredictedOutput(StrictModel):
    """Text that much of the answer will repeat, such as a file to be edited."""

    class Part(StrictModel):
        type: Literal["text"]
        text: Text

    type: Literal["content"]
    content: Annotated[Text | List[Part], at_most(1024)]


class GenerationRequest(StrictModel):
    """Fields of all requests for text, in every dialect."""

    model: str | None = Field(None, max_length=256)
    stream: bool | None = None
    priority: int | None = Field(
        None, ge=-(2**31), lt=2**31, description="Lower runs first; needs --scheduling-policy priority."
    )
    cache_salt: str | None = Field(
        None, max_length=256, description="Only requests with the same salt, of one API key, share caches."
    )
    speculation: SpeculationOptions | Literal["off"] | None = None
    prediction: PredictedOutput | None = None


class SamplingRequest(GenerationRequest):
    """Fields of completions and chats. Names and meanings are OpenAI's, then vLLM's."""

    stream_options: StreamOptions | None = None
    n: int | None = Field(None, ge=1, le=128)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    temperature: float | None = Field(None, ge=0, le=100)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1, lt=2**31, description="0 or -1 keep all.")
    min_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float | None = Field(None, ge=0.01, le=100)
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: Annotated[dict[TokenName, Bias] | None, at_most(1024)] = Field(None, max_length=1024)
    stop: Stop | Stops | None = None
    stop_token_ids: List[TokenId] | None = Field(None, max_length=1024)
    allowed_token_ids: List[TokenId] | None = Field(None, min_length=1, max_length=1 << 18)
    min_tokens: int | None = Field(None, ge=0, lt=2**31)
    use_beam_search: bool | None = Field(None, description="Give the n best of beam_width beams; draws nothing.")
    beam_width: int | None = Field(None, ge=1, le=64, description="n, or best_of, if left out.")
    length_penalty: float | None = Field(None, ge=-10, le=10)
    early_stopping: bool | Literal["never"] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    logprobs_mode: Literal["raw_logprobs", "processed_logprobs"] | None = Field(None, description="As vLLM's option.")
    structured_outputs: dict[str, Any] | None = None
    grammar: Text | None = Field(None, description="GBNF or Lark; llama.cpp's name for structured_outputs.grammar.")
    json_schema: dict[str, Any] | None = Field(None, description="llama.cpp's name for structured_outputs.json.")
    return_token_ids: bool | None = Field(None, description="Add prompt_token_ids, and token_ids to each choice.")
    token_details: bool | None = Field(None, description="Add where each token came from: accepted, recovered, ...")
    draft_details: bool | None = Field(None, description="Add each step's draft: its tree, and the path accepted.")

    # SGLang's, which its router and vLLM's send with every request: only the values that match this server.
    no_stop_trim: OnlyFalse | None = None
    return_hidden_states: OnlyFalse | None = None

    # Known to OpenAI's clients, and without influence on the output.
    user: str | None = Field(None, max_length=1024)
    store: bool | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = Field(None, max_length=64)
    safety_identifier: str | None = Field(None, max_length=1024)
    prompt_cache_key: str | None = Field(None, max_length=1024)


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
