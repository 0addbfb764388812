"""``/v1/messages`` in Anthropic's words."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from outrider_server.openai.schema.base import GenerationRequest, SpeculationMetrics, Stops, Text, Timings
from outrider_server.openai.schema.strict import List, OnlyFalse, StrictModel, at_most

Name = Annotated[str, Field(max_length=256)]


class TextBlock(StrictModel):
    """A block of a system prompt, or of a tool's result; other types are known in order to be refused by name."""

    type: str = Field(max_length=64)
    text: Text | None = None
    source: Any = None
    cache_control: dict[str, Any] | None = None
    citations: Any = None


class ContentBlock(TextBlock):
    """A block of a message, of any type."""

    id: Name | None = None
    name: Name | None = None
    input: dict[str, Any] | None = None
    caller: Any = None
    tool_use_id: Name | None = None
    content: Annotated[Text | List[TextBlock] | None, at_most(1024)] = None
    is_error: bool | None = None
    thinking: Text | None = None
    signature: Text | None = None
    data: Text | None = None
    title: Text | None = None
    context: Text | None = None


class AnthropicMessage(StrictModel):
    role: Literal["user", "assistant", "system"]
    content: Annotated[Text | List[ContentBlock], at_most(1024)]


class AnthropicTool(StrictModel):
    """Tools that a client runs; those that Anthropic runs have other types, and are refused."""

    name: str = Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")
    type: str | None = Field(None, max_length=64)
    description: Text | None = None
    input_schema: dict[str, Any] | None = None
    cache_control: dict[str, Any] | None = None
    strict: bool | None = None
    input_examples: List[Any] | None = Field(None, max_length=64)
    defer_loading: OnlyFalse | None = None
    eager_input_streaming: bool | None = None


class ToolChoice(StrictModel):
    type: Literal["auto", "any", "tool", "none"]
    name: Name | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(StrictModel):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = Field(None, description="Refused: nothing here ends a section early.")
    display: Literal["summarized"] | None = None


class OutputFormat(StrictModel):
    json_schema_: dict[str, Any] = Field(alias="schema")
    type: Literal["json_schema"]


class OutputConfig(StrictModel):
    format: OutputFormat | None = None
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None


class ContextEdit(StrictModel):
    """Thinking of earlier turns: chat templates say which of it a model sees. Nothing else is cleared here."""

    type: Literal["clear_thinking_20251015"]
    keep: Any = None


class ContextManagement(StrictModel):
    edits: List[ContextEdit] | None = Field(None, max_length=16)


class PromptRequest(StrictModel):
    """The fields that make up a prompt."""

    model: str | None = Field(None, max_length=256)
    messages: List[AnthropicMessage] = Field(min_length=1, max_length=4096)
    system: Annotated[Text | List[TextBlock] | None, at_most(1024)] = None
    tools: List[AnthropicTool] | None = Field(None, max_length=128)
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: dict[str, Any] | None = None
    context_management: ContextManagement | None = Field(None, description="Without influence: clears no more.")


class MessagesRequest(PromptRequest, GenerationRequest):
    """Names and defaults are Anthropic's; ``seed``, ``min_p`` and those of ``GenerationRequest`` are additions."""

    max_tokens: int = Field(ge=1, lt=2**31)
    stop_sequences: Stops | None = None
    temperature: float | None = Field(None, ge=0, le=1, description="1 if left out.")
    top_k: int | None = Field(None, ge=0, lt=2**31, description="0 keeps all.")
    top_p: float | None = Field(None, gt=0, le=1)
    min_p: float | None = Field(None, ge=0, le=1)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)

    thread: Any = Field(None, description="Refused, as nothing is kept; Anthropic's clients then send whole messages.")

    # Known to Anthropic's clients, and without influence on the output.
    metadata: dict[str, Any] | None = None
    service_tier: str | None = Field(None, max_length=64)
    inference_geo: str | None = Field(None, max_length=64)


class CountRequest(PromptRequest):
    """The tokens of a prompt."""


class CountResponse(BaseModel):
    input_tokens: int


class AnthropicError(BaseModel):
    type: str
    message: str


class AnthropicErrorResponse(BaseModel):
    """Every answer with a status of 400 or more."""

    type: Literal["error"]
    error: AnthropicError


class MessageUsage(BaseModel):
    input_tokens: int
    output_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int


class MessagesResponse(BaseModel):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[dict[str, Any]]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
    stop_sequence: str | None
    usage: MessageUsage
    metrics: SpeculationMetrics
    timings: Timings
