"""``/completion`` in llama.cpp's words, with every field its clients are known to send."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, RootModel

from outrider_server.openai.schema.base import GenerationRequest, SpeculationMetrics, Stops, Text, Timings, TokenId
from outrider_server.openai.schema.chat import Message, Tool
from outrider_server.openai.schema.strict import List, StrictModel, at_most


class PromptObject(StrictModel):
    prompt_string: Text
    multimodal_data: Any = Field(None, description="Refused: send images to /v1/chat/completions.")


Mixed = Annotated[List[TokenId | Text], Field(min_length=1)]
Prompt = Text | PromptObject | Mixed
BiasText = Annotated[str, Field(max_length=256)]
Pair = Annotated[List[int | float | BiasText | bool], Field(max_length=2)]
Bias = Annotated[dict[BiasText, float | bool] | List[Pair], at_most(1024)]


class LlamaCppRequest(GenerationRequest):
    """Options of samplers that this server lacks are taken only where they are off."""

    prompt: Prompt | Annotated[List[Prompt], Field(min_length=1)] = Field(
        description="Text, token ids, both mixed, an object with prompt_string, or a list of these."
    )
    n_predict: int | None = Field(None, ge=-1, lt=2**31, description="-1, or left out: as many as the context holds.")
    n_cmpl: int | None = Field(None, ge=1, le=128, description="Outputs of each prompt.")
    seed: int | None = Field(None, ge=-(2**63), lt=2**63, description="-1 and 4294967295 stand for any.")
    temperature: float | None = Field(None, ge=-100, le=100, description="0.8 if left out; 0 and below are greedy.")
    top_k: int | None = Field(None, ge=-(2**31), lt=2**31, description="40 if left out; 0 and below keep all.")
    top_p: float | None = Field(None, gt=0, le=1, description="0.95 if left out.")
    min_p: float | None = Field(None, ge=0, le=1, description="0.05 if left out.")
    repeat_penalty: float | None = Field(None, ge=0.01, le=100, description="Over prompt and output.")
    repeat_last_n: int | None = Field(None, description="Only -1: penalties look at the whole text.")
    presence_penalty: float | None = Field(None, ge=-2, le=2, description="Counts the output.")
    frequency_penalty: float | None = Field(None, ge=-2, le=2, description="Counts the output.")
    logit_bias: Bias | None = Field(
        None, max_length=1024, description="Pairs of a token id or a text and a number, or false for never."
    )
    stop: Stops | None = None
    ignore_eos: bool | None = Field(None, description="The end of text is never drawn.")
    grammar: Text | None = Field(None, description="GBNF.")
    json_schema: dict[str, Any] | None = None
    samplers: List[Annotated[str, Field(max_length=64)]] | None = Field(
        None, max_length=32, description="Those not named are off; the order is fixed (see /props)."
    )
    n_probs: int | None = Field(None, ge=0, le=20, description="Log-probabilities before any sampler.")
    cache_prompt: bool | None = Field(None, description="false: share no cached prefix with any other request.")
    return_tokens: bool | None = None
    response_fields: List[Annotated[str, Field(max_length=256)]] | None = Field(None, max_length=64)
    timings_per_token: bool | None = None
    n_max: int | None = Field(None, alias="speculative.n_max", ge=0, le=1024, description="0: no drafts.")

    # Accepted only with values that change nothing: these features are not supported.
    typical_p: float | None = None
    dynatemp_range: float | None = None
    top_n_sigma: float | None = None
    xtc_probability: float | None = None
    dry_multiplier: float | None = None
    mirostat: int | None = None
    adaptive_target: float | None = None
    min_keep: int | None = None
    n_indent: int | None = None
    t_max_predict_ms: int | None = None
    n_cache_reuse: int | None = None
    id_slot: int | None = Field(None, ge=-1, description="A name for what is saved by it; places are not chosen.")
    lora: List[Any] | None = Field(None, max_length=64)
    return_progress: bool | None = None
    post_sampling_probs: bool | None = None
    backend_sampling: bool | None = None
    n_min: int | None = Field(None, alias="speculative.n_min")
    p_min: float | None = Field(None, alias="speculative.p_min")

    # Parameters of features that are off: the samplers above, and shifting the context.
    dynatemp_exponent: float | None = None
    xtc_threshold: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_penalty_last_n: int | None = None
    dry_sequence_breakers: List[Annotated[str, Field(max_length=256)]] | None = Field(None, max_length=64)
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    adaptive_decay: float | None = None
    n_keep: int | None = None
    n_discard: int | None = None


class LlamaCppAnswer(BaseModel):
    """``response_fields`` may leave out any of it."""

    index: int | None = None
    content: str | None = None
    tokens: list[int] | None = None
    id_slot: int | None = None
    stop: bool | None = None
    model: str | None = None
    tokens_predicted: int | None = None
    tokens_evaluated: int | None = None
    tokens_cached: int | None = None
    generation_settings: dict[str, Any] | None = None
    prompt: str | None = None
    has_new_line: bool | None = None
    truncated: bool | None = None
    stop_type: Literal["none", "eos", "limit", "word"] | None = None
    stopping_word: str | None = None
    completion_probabilities: list[dict[str, Any]] | None = None
    system_fingerprint: str | None = None
    metrics: SpeculationMetrics | None = None
    timings: Timings | None = None


class LlamaCppResponse(RootModel[LlamaCppAnswer | list[LlamaCppAnswer]]):
    """One answer; a list for several prompts, or several outputs."""


class TemplateRequest(StrictModel):
    """A conversation to be written as the model would read it."""

    model: str | None = Field(None, max_length=256)
    messages: List[Message] = Field(min_length=1, max_length=4096)
    tools: List[Tool] | None = Field(None, max_length=128)
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class TemplateResponse(BaseModel):
    prompt: str
