"""``/completion`` and ``/completions``, as llama.cpp's server has them (tools/server/README.md)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from outrider.config import SamplingParams
from outrider.engine.request import Request as EngineRequest
from outrider.engine.request import StepOutput
from outrider.errors import InvalidRequestError
from outrider_server.dialect import Dialect
from outrider_server.generation import Generation, respond
from outrider_server.http.context import tenant_of
from outrider_server.http.errors import invalid
from outrider_server.http.openapi import documented
from outrider_server.http.request_body import json_body
from outrider_server.http.stream import EVENTS, Chunk
from outrider_server.llama_cpp import info, options, slots
from outrider_server.llama_cpp.schema import LlamaCppRequest, LlamaCppResponse, PromptObject
from outrider_server.models import service_of
from outrider_server.openai import statistics
from outrider_server.openai.logprobs import llama_cpp_logprobs
from outrider_server.openai.options import scheduling
from outrider_server.service import Service

router = APIRouter()

ANY_SLOT = -1  # places here are not for clients to choose, nor to come back to


@router.post("/completion", **documented(LlamaCppRequest, LlamaCppResponse))
@router.post("/completions", include_in_schema=False)
async def completion(
    request: Request, body: Annotated[LlamaCppRequest, Depends(json_body(LlamaCppRequest, untyped=True))]
) -> Response:
    """Continue texts, in llama.cpp's words. With ``stream``, an event a token and one at the end."""
    service = await service_of(request, body.model)
    return await respond(request, _start(service, body, tenant_of(request)), stream=bool(body.stream), form=EVENTS)


async def _start(service: Service, body: LlamaCppRequest, tenant: str) -> LlamaCppResponseBuilder:
    """Check the request and start its sequences."""
    model = service.check_model(body.model)
    options.check(body, service.settings.limits.max_n)
    prompts = await service.executors.run_if_large(lambda: _prompts(body.prompt))
    if len(prompts) > (many := service.settings.limits.max_prompts):
        raise invalid(f"{len(prompts)} prompts in one request: send at most {many}", "prompt")
    max_tokens = options.limit(body, service.settings.max_tokens)
    tokenizer, max_seq_len = service.tokenizer, service.max_seq_len
    try:
        most = max_seq_len if max_tokens is None else min(max_tokens, max_seq_len)
        params = await service.executors.run_if_large(lambda: options.sampling(body, tokenizer, most))
        generation = await Generation.start(
            service,
            lambda: [_token_ids(service, prompt) for prompt in prompts],
            params,
            options.speculation(body, service.engine.llm.speculation),
            prompts=len(prompts),
            id_prefix="cmpl",
            model=model,
            **scheduling(service, body, tenant, alone=body.cache_prompt is False),
        )
    except InvalidRequestError as error:
        raise options.renamed(error, body) from None
    generation.slot = body.id_slot if body.id_slot is not None and body.id_slot >= 0 else None
    return LlamaCppResponseBuilder(service, generation, body, params, max_tokens)


def _prompts(given: Any) -> list[Any]:
    """One prompt or several: a list with numbers in it is one prompt, of tokens and texts."""
    single = not isinstance(given, list) or any(isinstance(part, int) for part in given)
    prompts = [given] if single else given
    for prompt in prompts:
        if isinstance(prompt, PromptObject) and prompt.multimodal_data is not None:
            raise invalid(
                "multimodal_data is not supported: send images to /v1/chat/completions", "prompt", "unsupported"
            )
    return prompts


def _token_ids(service: Service, prompt: Any) -> list[int]:
    """The tokens of one prompt; the model's opening tokens are added only where a text comes first."""
    if isinstance(prompt, PromptObject):
        prompt = prompt.prompt_string
    parts: Sequence[int | str] = [prompt] if isinstance(prompt, str) else prompt
    ids: list[int] = []
    for place, part in enumerate(parts):
        ids += [part] if isinstance(part, int) else service.encode(part, add_special_tokens=place == 0)
    return ids


@dataclass
class LlamaCppResponseBuilder:
    """Writes the answer to a completion in llama.cpp's fields, whole (``full``) or streamed (``chunks``)."""

    service: Service
    generation: Generation
    body: LlamaCppRequest
    params: SamplingParams
    max_tokens: int | None  # tokens wanted; None: as many as the context holds

    def full(self) -> dict[str, Any] | list[dict[str, Any]]:
        made = []
        for index, request in enumerate(self.generation.requests):
            steps = self.generation.steps[index]
            content = {"content": request.text, "tokens": list(request.output) if self.body.return_tokens else []}
            made.append(self._select_fields(self._end(index) | content | self._probabilities(steps)))
        return made if len(made) > 1 else made[0]

    async def chunks(self) -> AsyncGenerator[Chunk]:
        """An event for each token, and one at the end of each sequence."""
        counts = [0] * len(self.generation.requests)
        async with aclosing(self.generation.bursts()) as bursts:
            async for index, steps in bursts:
                for step in steps:
                    counts[index] += 1
                    yield self._part(index, step, counts[index])
                if steps[-1].finish_reason is not None:
                    yield self._select_fields(self._end(index) | {"content": "", "tokens": []})

    def _part(self, index: int, step: StepOutput, count: int) -> dict[str, Any]:
        request = self.generation.requests[index]
        fields: dict[str, Any] = {
            "index": index,
            "content": step.text,
            "tokens": [step.token_id],
            "stop": False,
            "id_slot": ANY_SLOT,
            "tokens_predicted": count,
            "tokens_evaluated": request.prompt_length,
        }
        if self.body.timings_per_token:
            fields["timings"] = statistics.timings([request])
        return fields | self._probabilities([step])

    def _end(self, index: int) -> dict[str, Any]:
        """The fields of a sequence that has ended."""
        request = self.generation.requests[index]
        stats, tokenizer = request.stats, self.service.tokenizer
        params = replace(self.params, n=1, seed=request.seed)
        settings = options.settings(self.body, params, self.max_tokens, self.service.max_seq_len)
        return {
            "index": index,
            "id_slot": ANY_SLOT,
            "stop": True,
            "model": self.generation.model,
            "tokens_predicted": stats.completion_tokens,
            "tokens_evaluated": stats.prompt_tokens,
            "tokens_cached": stats.cached_prompt_tokens,
            "generation_settings": settings | {"seed": request.seed, "speculative.types": request.speculation.draft},
            "prompt": tokenizer.decode(request.prompt, skip_special_tokens=False),
            "has_new_line": "\n" in request.text,
            "truncated": _truncated(request, self.max_tokens),
            "stop_type": _stop_type(request),
            "stopping_word": request.written.stop_string or "",
            "system_fingerprint": self.service.fingerprint,
            "metrics": statistics.metrics([request]),
            "timings": statistics.timings([request]),
        }

    def _probabilities(self, steps: Sequence[StepOutput]) -> dict[str, Any]:
        top = self.body.n_probs
        return {"completion_probabilities": llama_cpp_logprobs(steps, self.service.tokenizer, top)} if top else {}

    def _select_fields(self, fields: dict[str, Any]) -> dict[str, Any]:
        """``response_fields``: ``a/b`` is field b of a, under the name ``a/b``; unknown fields are left out."""
        if not self.body.response_fields:
            return fields
        found = ((path, _lookup(fields, path.split("/"))) for path in self.body.response_fields)
        return {path: value[0] for path, value in found if value}


def _lookup(fields: Any, path: Sequence[str]) -> list[Any]:
    """The value at ``path``, in a list that is empty if there is none."""
    for name in path:
        if not isinstance(fields, Mapping) or name not in fields:
            return []
        fields = fields[name]
    return [fields]


def _stop_type(request: EngineRequest) -> str:
    if request.finish_reason == "length":
        return "limit"
    return "eos" if request.written.stop_string is None else "word"


def _truncated(request: EngineRequest, max_tokens: int | None) -> bool:
    """Whether the context, and not the request, set the end."""
    made = request.stats.completion_tokens
    return request.finish_reason == "length" and (max_tokens is None or made < max_tokens)


dialect = Dialect((router, info.router, slots.router))
