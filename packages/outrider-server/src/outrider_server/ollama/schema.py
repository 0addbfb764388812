"""``/api/chat`` and ``/api/generate`` in Ollama's words."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from outrider_server.openai.schema.base import GenerationRequest, SpeculationMetrics, Stop, Stops, Text, Timings
from outrider_server.openai.schema.strict import List, StrictModel

KeepAlive = float | Annotated[str, Field(max_length=64)]


class Options(StrictModel):
    """Defaults are Ollama's, except that nothing is penalised unless asked for."""

    num_predict: int | None = Field(None, ge=-2, lt=2**31, description="Below 0, or left out: what the context holds.")
    seed: int | None = Field(None, ge=-(2**63), lt=2**63, description="-1 stands for any.")
    temperature: float | None = Field(None, ge=0, le=100, description="0.8 if left out.")
    top_k: int | None = Field(None, ge=-1, lt=2**31, description="40 if left out; 0 keeps all.")
    top_p: float | None = Field(None, gt=0, le=1, description="0.9 if left out.")
    min_p: float | None = Field(None, ge=0, le=1, description="0 if left out.")
    repeat_penalty: float | None = Field(None, ge=0.01, le=100, description="Over prompt and output; 1 if left out.")
    presence_penalty: float | None = Field(None, ge=-2, le=2, description="Counts the output.")
    frequency_penalty: float | None = Field(None, ge=-2, le=2, description="Counts the output.")
    stop: Stop | Stops | None = None
    num_ctx: int | None = Field(None, ge=1, lt=2**31, description="No more than the server's; nothing is cut off.")

    # Accepted only with values that change nothing: these features are not supported.
    repeat_last_n: int | None = Field(None, description="Only -1: penalties look at the whole text.")
    typical_p: float | None = None
    tfs_z: float | None = None
    mirostat: int | None = None
    penalize_newline: bool | None = None
    logits_all: bool | None = None
    embedding_only: bool | None = None
    vocab_only: bool | None = None

    # Of a sampler that is off, and of how Ollama runs a model: without influence on the output.
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    num_keep: int | None = None
    num_batch: int | None = None
    num_gpu: int | None = None
    main_gpu: int | None = None
    num_thread: int | None = None
    numa: bool | None = None
    low_vram: bool | None = None
    f16_kv: bool | None = None
    use_mmap: bool | None = None
    use_mlock: bool | None = None


class OllamaRequest(GenerationRequest):
    """Fields of chats and completions; the fields of ``GenerationRequest`` are additions."""

    model: str = Field(max_length=256)
    stream: bool | None = Field(None, description="true if left out.")
    options: Options | None = None
    format: Literal["", "json"] | dict[str, Any] | None = None
    think: bool | Literal["low", "medium", "high"] | None = None
    keep_alive: KeepAlive | None = Field(None, description="A single model stays loaded in any case.")
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)


class Function(StrictModel):
    name: str = Field(max_length=256)
    arguments: dict[str, Any]
    index: int | None = None


class OllamaToolCall(StrictModel):
    function: Function
    id: str | None = Field(None, max_length=256)
    type: Literal["function"] | None = None


class OllamaMessage(StrictModel):
    role: Literal["system", "user", "assistant", "tool"]
    content: Text | None = None
    thinking: Text | None = None
    images: List[Any] | None = Field(None, max_length=64, description="Refused: send them to /v1/chat/completions.")
    tool_calls: List[OllamaToolCall] | None = Field(None, max_length=128)
    tool_name: str | None = Field(None, max_length=256)
    tool_call_id: str | None = Field(None, max_length=256)


class ToolFunction(StrictModel):
    name: str = Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")
    description: Text | None = None
    parameters: dict[str, Any] | None = None


class OllamaTool(StrictModel):
    type: Literal["function"] | None = None
    function: ToolFunction


class OllamaChatRequest(OllamaRequest):
    messages: List[OllamaMessage] | None = Field(None, max_length=4096, description="None: only asks for the model.")
    tools: List[OllamaTool] | None = Field(None, max_length=128)


class OllamaGenerateRequest(OllamaRequest):
    prompt: Text | None = Field(None, description="None: only asks for the model.")
    system: Text | None = None
    raw: bool | None = Field(None, description="The prompt is read as it is, without the chat template.")
    suffix: Text | None = Field(None, description="Refused: models here write from left to right.")
    template: Text | None = Field(None, description="Refused: the template is the model's.")
    context: List[int] | None = Field(None, max_length=1 << 18, description="Refused: send messages to /api/chat.")
    images: List[Any] | None = Field(None, max_length=64, description="Refused: send them to /v1/chat/completions.")


class ShowRequest(StrictModel):
    model: str | None = Field(None, max_length=256)
    name: str | None = Field(None, max_length=256)
    verbose: bool | None = None


class PullRequest(StrictModel):
    model: str | None = Field(None, max_length=256)
    name: str | None = Field(None, max_length=256)
    stream: bool | None = Field(None, description="true if left out.")
    insecure: bool | None = Field(None, description="Without influence: nothing is downloaded.")


class PullResponse(BaseModel):
    status: Literal["success"]


class OllamaErrorResponse(BaseModel):
    """Every answer with a status of 400 or more."""

    error: str


class OllamaResponse(BaseModel):
    """Times are in nanoseconds."""

    model: str
    created_at: str
    done: bool
    done_reason: Literal["stop", "length", "load", "unload"] | None = None
    total_duration: int | None = None
    load_duration: int | None = None
    prompt_eval_count: int | None = None
    prompt_eval_duration: int | None = None
    eval_count: int | None = None
    eval_duration: int | None = None
    logprobs: list[dict[str, Any]] | None = None
    metrics: SpeculationMetrics | None = None
    timings: Timings | None = None


class OllamaChatResponse(OllamaResponse):
    message: dict[str, Any]


class OllamaGenerateResponse(OllamaResponse):
    response: str
    thinking: str | None = None


class ShowResponse(BaseModel):
    modelfile: str
    parameters: str
    template: str
    system: str
    details: dict[str, Any]
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str
