"""Embeddings: means of the target's last hidden states over the tokens of a text, scaled to length 1."""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from outrider.config import SamplingParams
from outrider_server.dialect import Dialect
from outrider_server.embeddings.schema import (
    EmbeddingsRequest,
    EmbeddingsResponse,
    EmbedRequest,
    EmbedResponse,
    OldEmbeddingsRequest,
    OldEmbeddingsResponse,
)
from outrider_server.generation import Generation, respond
from outrider_server.http.context import tenant_of
from outrider_server.http.errors import invalid
from outrider_server.http.openapi import documented
from outrider_server.http.request_body import json_body
from outrider_server.http.stream import Chunk
from outrider_server.models import service_of
from outrider_server.ollama.keep_alive import named_service
from outrider_server.ollama.options import check, model_name
from outrider_server.ollama.schema import OllamaErrorResponse, Options
from outrider_server.openai.options import adapter_of, check_priority
from outrider_server.service import Service

router = APIRouter()


@router.post("/v1/embeddings", **documented(EmbeddingsRequest, EmbeddingsResponse))
@router.post("/embeddings", include_in_schema=False)
async def embeddings(
    request: Request, body: Annotated[EmbeddingsRequest, Depends(json_body(EmbeddingsRequest, untyped=True))]
) -> Response:
    """The embedding of each input, as numbers or, in base64, as the bytes of little-endian float32."""
    service = await service_of(request, body.model)
    model = service.check_model(body.model)
    check_priority(service, body.priority)
    texts = await service.executors.run_if_large(lambda: _inputs(body.input))

    def write(run: EmbeddingBuilder) -> Any:
        packed = body.encoding_format == "base64"
        vectors = [run.packed(i) if packed else run.numbers(i) for i in range(len(texts))]
        count = run.prompt_tokens
        return {
            "object": "list",
            "model": model,
            "data": [{"object": "embedding", "index": i, "embedding": vector} for i, vector in enumerate(vectors)],
            "usage": {"prompt_tokens": count, "total_tokens": count},
        }

    start = _start(service, model, texts, body.dimensions, tenant_of(request), write, priority=body.priority or 0)
    return await respond(request, start, stream=False)


@router.post("/api/embed", **documented(EmbedRequest, EmbedResponse, error=OllamaErrorResponse))
async def embed(
    request: Request, body: Annotated[EmbedRequest, Depends(json_body(EmbedRequest, untyped=True))]
) -> Response:
    """The embedding of each input, in Ollama's words."""
    service = await named_service(request, body.model, body.keep_alive)
    model = model_name(service, body.model)
    _check_options(service, body.options)
    texts = await service.executors.run_if_large(lambda: _inputs(body.input))

    def write(run: EmbeddingBuilder) -> Any:
        seconds = max(each.stats.queue_s + each.stats.prefill_s for each in run.generation.requests)
        return {
            "model": model,
            "embeddings": [run.numbers(i) for i in range(len(texts))],
            "total_duration": int(1e9 * seconds),
            "load_duration": 0,
            "prompt_eval_count": run.prompt_tokens,
        }

    return await respond(
        request, _start(service, model, texts, body.dimensions, tenant_of(request), write), stream=False
    )


@router.post("/api/embeddings", **documented(OldEmbeddingsRequest, OldEmbeddingsResponse, error=OllamaErrorResponse))
async def old_embeddings(
    request: Request, body: Annotated[OldEmbeddingsRequest, Depends(json_body(OldEmbeddingsRequest, untyped=True))]
) -> Response:
    """The embedding of one prompt, as Ollama's older clients ask for it."""
    service = await named_service(request, body.model, body.keep_alive)
    model = model_name(service, body.model)
    _check_options(service, body.options)

    def write(run: EmbeddingBuilder) -> Any:
        return {"embedding": run.numbers(0)}

    return await respond(request, _start(service, model, [body.prompt], None, tenant_of(request), write), stream=False)


@dataclass
class EmbeddingBuilder:
    """Writes the answer to a request for embeddings."""

    generation: Generation
    write: Callable[[EmbeddingBuilder], Any]

    def full(self) -> Any:
        return self.write(self)

    async def chunks(self) -> AsyncGenerator[Chunk]:
        """Nothing: embeddings are not streamed."""
        return
        yield b""

    @property
    def prompt_tokens(self) -> int:
        return sum(request.prompt_length for request in self.generation.requests)

    def numbers(self, index: int) -> list[float]:
        numbers: list[float] = self.generation.requests[index].prompt_report.embedding().tolist()
        return numbers

    def packed(self, index: int) -> str:
        return base64.b64encode(
            self.generation.requests[index].prompt_report.embedding().astype("<f4").tobytes()
        ).decode()


async def _start(
    service: Service,
    model: str,
    texts: Sequence[str | list[int]],
    dimensions: int | None,
    tenant: str,
    write: Callable[[EmbeddingBuilder], Any],
    *,
    priority: int = 0,
) -> EmbeddingBuilder:
    """Queue a sequence for each text; each reads its text beside other requests, and ends with one unseen token.

    They share no cached prefixes: rows that the cache holds have no hidden states.
    """
    llm = service.engine.llm
    width = llm.model.config.hidden_size
    if dimensions not in (None, width):
        message = f"dimensions={dimensions} is not supported: this model has {width}; leave it out"
        raise invalid(message, "dimensions", "unsupported")
    if len(texts) > (most := service.settings.limits.max_prompts):
        raise invalid(f"{len(texts)} inputs in one request: send at most {most}", "input")

    def tokenize() -> list[list[int]]:
        ids = [service.encode(text) if isinstance(text, str) else text for text in texts]
        if not all(ids):
            raise invalid("an input is empty: give some text", "input")
        return ids

    generation = await Generation.start(
        service,
        tokenize,
        SamplingParams(max_tokens=1),
        replace(llm.speculation, draft="none", prediction=None),
        prompts=len(texts),
        id_prefix="embd",
        model=model,
        tenant=tenant,
        priority=priority,
        cache_salt=service.callers.domain(tenant, ""),
        lora_request=adapter_of(service, model),
    )
    for request in generation.requests:
        request.prompt_report.final_norm = llm.model.final_norm
    return EmbeddingBuilder(generation, write)


def _inputs(given: Any) -> list[str | list[int]]:
    """One text, one list of tokens, or a list of either."""
    single = isinstance(given, str) or isinstance(given[0], int)
    return [given] if single else list(given)


def _check_options(service: Service, options: Options | None) -> None:
    if options is not None:
        check(options, service.max_seq_len)


dialect = Dialect((router,))
