"""``/tokenize`` and ``/detokenize``, with vLLM's field names and llama.cpp's."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from outrider_server.openai.schema.base import Text, TokenId
from outrider_server.openai.schema.chat import Message, Tool
from outrider_server.openai.schema.strict import List, StrictModel


class TokenizeRequest(StrictModel):
    model: str | None = Field(None, max_length=256)
    prompt: Text | None = Field(None, description="vLLM's name of the text.")
    content: Text | None = Field(None, description="llama.cpp's name of the text.")
    messages: List[Message] | None = Field(None, min_length=1, max_length=4096)
    add_special_tokens: bool | None = Field(None, description="True if left out, as vLLM has it.")
    add_special: bool | None = Field(None, description="False if left out, as llama.cpp has it.")
    parse_special: bool | None = Field(
        None, description="Control tokens that the text spells become tokens: true if left out, false for messages."
    )
    return_token_strs: bool | None = None
    with_pieces: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: List[Tool] | None = Field(None, max_length=128)


class TokenizeResponse(BaseModel):
    tokens: list[int] | list[dict[str, Any]]
    count: int
    max_model_len: int
    token_strs: list[str] | None = None


class DetokenizeRequest(StrictModel):
    model: str | None = Field(None, max_length=256)
    tokens: List[TokenId]


class DetokenizeResponse(BaseModel):
    prompt: str
    content: str
