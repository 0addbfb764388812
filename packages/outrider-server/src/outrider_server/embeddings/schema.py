"""``/v1/embeddings``, ``/api/embed`` and ``/api/embeddings``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from outrider_server.ollama.schema import KeepAlive, Options
from outrider_server.openai.schema.base import Text, TokenId
from outrider_server.openai.schema.strict import List, StrictModel

Tokens = Annotated[List[TokenId], Field(min_length=1)]


class EmbeddingsRequest(StrictModel):
    """Names are OpenAI's."""

    model: str | None = Field(None, max_length=256)
    input: Text | Tokens | Annotated[List[Text], Field(min_length=1)] | Annotated[List[Tokens], Field(min_length=1)]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = Field(None, ge=1, lt=2**31, description="Only that of the model.")
    priority: int | None = Field(None, ge=-(2**31), lt=2**31)
    user: str | None = Field(None, max_length=1024)


class EmbeddingsUsage(BaseModel):
    prompt_tokens: int
    total_tokens: int


class EmbeddingsResponse(BaseModel):
    """Means of the model's last hidden states over the tokens of each input, scaled to length 1."""

    object: Literal["list"]
    model: str
    data: list[dict[str, Any]]
    usage: EmbeddingsUsage


class EmbedRequest(StrictModel):
    """Names are Ollama's."""

    model: str = Field(max_length=256)
    input: Text | Annotated[List[Text], Field(min_length=1)]
    truncate: bool | None = Field(None, description="A text that is too long is refused in any case.")
    dimensions: int | None = Field(None, ge=1, lt=2**31, description="Only that of the model.")
    options: Options | None = None
    keep_alive: KeepAlive | None = None


class OldEmbeddingsRequest(StrictModel):
    model: str = Field(max_length=256)
    prompt: Text
    options: Options | None = None
    keep_alive: KeepAlive | None = None


class EmbedResponse(BaseModel):
    """Times are in nanoseconds."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class OldEmbeddingsResponse(BaseModel):
    embedding: list[float]
