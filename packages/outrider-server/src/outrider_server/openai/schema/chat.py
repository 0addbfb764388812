"""``/v1/chat/completions``: conversations to answer."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from outrider_server.openai.schema.base import SamplingRequest, SpeculationMetrics, Text, Timings, Usage
from outrider_server.openai.schema.strict import List, OnlyTrue, StrictModel, at_most

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]
Role = Literal["system", "developer", "user", "assistant", "tool", "function"]


class ContentPart(StrictModel):
    """Text, or an image for models that see; the others are known in order to be refused by name."""

    type: str = Field(max_length=64)
    text: Text | None = None
    refusal: Text | None = None
    image_url: Any = Field(None, description="A data URL, or an object with a data URL as url. Nothing is fetched.")
    input_audio: Any = None
    file: Any = None


class FunctionCall(StrictModel):
    name: str = Field(max_length=256)
    arguments: Text


class ToolCall(StrictModel):
    id: str = Field(max_length=256)
    type: Literal["function"] = "function"
    function: FunctionCall
    index: int | None = None


class Message(StrictModel):
    role: Role
    content: Annotated[Text | List[ContentPart] | None, at_most(1024)] = None
    name: str | None = Field(None, max_length=256)
    tool_calls: List[ToolCall] | None = Field(None, max_length=128)
    tool_call_id: str | None = Field(None, max_length=256)
    refusal: Text | None = None
    reasoning_content: Text | None = None
    annotations: List[Any] | None = None
    audio: None = None
    function_call: None = None


class FunctionDefinition(StrictModel):
    name: str = Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")
    description: Text | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(StrictModel):
    type: Literal["function"]
    function: FunctionDefinition


class NamedTool(StrictModel):
    class Name(StrictModel):
        name: str = Field(max_length=256)

    type: Literal["function"]
    function: Name


class ChatRequest(SamplingRequest):
    messages: List[Message] = Field(min_length=1, max_length=4096)
    max_tokens: int | None = Field(None, ge=1, lt=2**31, description="As much as the context holds, if left out.")
    max_completion_tokens: int | None = Field(None, ge=1, lt=2**31)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    response_format: dict[str, Any] | None = None
    tools: List[Tool] | None = Field(None, max_length=128)
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Effort | None = Field(None, description="Refused where the chat template knows none of it.")
    modalities: List[Literal["text"]] | None = Field(None, max_length=16)
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    separate_reasoning: OnlyTrue | None = Field(None, description="SGLang's; thinking is always a field of its own.")
    stream_reasoning: OnlyTrue | None = None
    include_reasoning: OnlyTrue | None = Field(None, description="vLLM's.")
    parse_special: bool | None = Field(None, description="Control tokens that messages spell become tokens.")


class AnswerMessage(BaseModel):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None


class ChatChoice(BaseModel):
    index: int
    message: AnswerMessage
    logprobs: dict[str, Any] | None
    finish_reason: Literal["stop", "length", "tool_calls"]
    seed: int
    score: float | None = Field(None, description="Of a beam: log-probability / tokens ** length_penalty.")


class ChatResponse(BaseModel):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage
    metrics: SpeculationMetrics
    timings: Timings
