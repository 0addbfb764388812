"""``/v1/responses``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from outrider_server.openai.schema.base import GenerationRequest, SpeculationMetrics, Text, Timings
from outrider_server.openai.schema.chat import Effort
from outrider_server.openai.schema.strict import List, OnlyFalse, StrictModel, at_most

Name = Annotated[str, Field(max_length=256)]
Status = Literal["in_progress", "completed", "incomplete"]


class ResponsesPart(StrictModel):
    """Text of some kind; others are known in order to be refused by name."""

    type: str = Field(max_length=64)
    text: Text | None = None
    refusal: Text | None = None
    annotations: List[Any] | None = Field(None, max_length=1024)
    logprobs: List[Any] | None = None
    image_url: Any = None
    file_id: Any = None
    file_data: Any = None
    file_url: Any = None
    filename: Any = None
    detail: Any = None
    input_audio: Any = None


class InputItem(StrictModel):
    """A message, a function call, its output, or reasoning, as earlier responses give them."""

    type: str | None = Field(None, max_length=64, description="A message, if left out.")
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: Annotated[Text | List[ResponsesPart] | None, at_most(1024)] = None
    id: Name | None = None
    status: Status | None = None
    phase: Literal["commentary", "final_answer"] | None = None
    call_id: Name | None = None
    name: Name | None = None
    namespace: Name | None = None
    arguments: Text | None = None
    output: Annotated[Text | List[ResponsesPart] | None, at_most(1024)] = None
    summary: List[ResponsesPart] | None = Field(None, max_length=64)
    encrypted_content: None = None


class FunctionTool(StrictModel):
    """A function that the caller runs; those that OpenAI runs have other types, and are refused."""

    type: str = Field(max_length=64)
    name: str | None = Field(None, pattern=r"^[a-zA-Z0-9_.-]{1,64}$")
    description: Text | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    defer_loading: OnlyFalse | None = None


class ResponsesTool(FunctionTool):
    """A function, or a namespace of several. Tools that OpenAI runs have fields of their own, which are not read."""

    model_config = ConfigDict(extra="ignore")

    tools: List[FunctionTool] | None = Field(None, max_length=128, description="Of a namespace.")


class NamedFunction(StrictModel):
    type: Literal["function"]
    name: Name


class TextFormat(StrictModel):
    type: Literal["text", "json_object", "json_schema"]
    name: Name | None = None
    description: Text | None = None
    strict: bool | None = None
    json_schema_: dict[str, Any] | None = Field(None, alias="schema")


class TextOptions(StrictModel):
    format: TextFormat | None = None
    verbosity: Literal["medium"] | None = None


class Reasoning(StrictModel):
    effort: Effort | None = None
    summary: Literal["auto"] | None = Field(None, description="There are none: thinking comes as it is.")


class ResponseStreamOptions(StrictModel):
    include_obfuscation: bool | None = None


class ResponsesRequest(GenerationRequest):
    """Names and defaults are OpenAI's; ``seed``, ``top_k``, ``min_p`` and some others are additions."""

    input: Annotated[Text | List[InputItem], at_most(4096)]
    instructions: Text | None = None
    max_output_tokens: int | None = Field(None, ge=1, lt=2**31)
    temperature: float | None = Field(None, ge=0, le=2, description="1 if left out.")
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1, lt=2**31)
    min_p: float | None = Field(None, ge=0, le=1)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    top_logprobs: int | None = Field(None, ge=0, le=20, description="Needs include: message.output_text.logprobs.")
    text: TextOptions | None = None
    tools: List[ResponsesTool] | None = Field(None, max_length=128)
    tool_choice: Literal["none", "auto", "required"] | NamedFunction | None = None
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    include: List[Literal["message.output_text.logprobs", "reasoning.encrypted_content"]] | None = Field(
        None, max_length=16, description="There is no encrypted content: reasoning comes as text."
    )
    stream_options: ResponseStreamOptions | None = None

    # Known in order to be refused by name: nothing is kept between requests, and nothing is cut off.
    previous_response_id: Name | None = None
    conversation: Any = None
    prompt: Any = None
    store: bool | None = Field(None, description="Only false, which is what happens if it is left out.")
    background: OnlyFalse | None = None
    truncation: Literal["disabled"] | None = None
    max_tool_calls: None = None

    # Known to OpenAI's clients, and without influence on the output.
    user: str | None = Field(None, max_length=1024)
    metadata: dict[str, Any] | None = None
    client_metadata: dict[str, Any] | None = None
    service_tier: str | None = Field(None, max_length=64)
    safety_identifier: str | None = Field(None, max_length=1024)
    prompt_cache_key: str | None = Field(None, max_length=1024)
    prompt_cache_retention: str | None = Field(None, max_length=64)


class ResponseUsage(BaseModel):
    input_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens: int
    output_tokens_details: dict[str, int]
    total_tokens: int


class ResponsesResponse(BaseModel):
    id: str
    object: Literal["response"]
    created_at: int
    status: Status
    model: str
    output: list[dict[str, Any]]
    incomplete_details: dict[str, str] | None
    usage: ResponseUsage | None
    store: Literal[False]
    metrics: SpeculationMetrics | None = None
    timings: Timings | None = None
