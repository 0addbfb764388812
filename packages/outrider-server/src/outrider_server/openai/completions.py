"""``/v1/completions``."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from outrider.engine.request import Request as EngineRequest
from outrider.engine.request import StepOutput
from outrider_server.generation import Generation, respond
from outrider_server.http.context import tenant_of
from outrider_server.http.errors import invalid, to_long_json
from outrider_server.http.openapi import documented
from outrider_server.http.request_body import json_body
from outrider_server.http.stream import Chunk
from outrider_server.models import service_of
from outrider_server.openai import options
from outrider_server.openai.logprobs import CompletionLogprobs, prompt_rows, token_fields
from outrider_server.openai.schema.completions import CompletionRequest, CompletionResponse
from outrider_server.openai.statistics import envelope, running_usage, usage_and_timings, wants_usage
from outrider_server.service import Service

router = APIRouter()

DEFAULT_MAX_TOKENS = 16  # OpenAI's


@router.post("/v1/completions", **documented(CompletionRequest, CompletionResponse))
async def completions(
    request: Request, body: Annotated[CompletionRequest, Depends(json_body(CompletionRequest))]
) -> Response:
    """Continue texts. With ``stream``, as server-sent events that end with ``[DONE]``."""
    service = await service_of(request, body.model)
    return await respond(
        request,
        _start(service, body, tenant_of(request)),
        stream=bool(body.stream),
        obfuscate=options.wants_obfuscation(body),
    )


async def _start(service: Service, body: CompletionRequest, tenant: str) -> CompletionResponseBuilder:
    """Check the request and start its sequences."""
    model = service.check_model(body.model)
    prompts = await service.executors.run_if_large(lambda: _prompts(body.prompt))
    n = body.n or 1
    num_sequences = n if body.use_beam_search else max(n, body.best_of or 1)  # best_of beams are one search
    _check_fields(service, body, len(prompts), n, num_sequences)
    limit = service.settings.max_tokens
    wanted = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    top = body.logprobs
    params = await service.executors.run_if_large(
        lambda: options.sampling(
            body,
            max_tokens=max(1, wanted if limit is None else min(wanted, limit)),
            n=num_sequences,
            logprobs=0 if top is None and num_sequences > n else top,
            prompt_logprobs=top if body.echo else None,
            structured=options.structured_output(body, body.response_format),
        )
    )
    special = body.add_special_tokens is not False

    def tokenize() -> list[list[int]]:
        return [service.encode(p, add_special_tokens=special) if isinstance(p, str) else p for p in prompts]

    with options.field_names(body):
        generation = await Generation.start(
            service,
            tokenize,
            params,
            options.speculation(body, service.engine.llm.speculation),
            prompts=len(prompts),
            id_prefix="cmpl",
            model=model,
            reports_drafts=bool(body.draft_details),
            **options.scheduling(service, body, tenant),
        )
    return CompletionResponseBuilder(service, generation, body, prompts, n, num_sequences, only_echo=wanted == 0)


def _prompts(given: str | list[int] | list[str | list[int]]) -> list[str | list[int]]:
    if isinstance(given, str):
        return [given]
    ids = [item for item in given if isinstance(item, int)]
    return [ids] if ids else [item for item in given if not isinstance(item, int)]


def _check_fields(service: Service, body: CompletionRequest, prompts: int, n: int, num_sequences: int) -> None:
    settings = service.settings
    if prompts > settings.limits.max_prompts:
        raise invalid(f"{prompts} prompts in one request: send at most {settings.limits.max_prompts}", "prompt")
    if num_sequences > settings.limits.max_n:
        param = "n" if n == num_sequences else "best_of"
        raise invalid(f"{param}={num_sequences} outputs of one prompt: ask for at most {settings.limits.max_n}", param)
    if body.best_of is not None and body.best_of < n:
        raise invalid(f"best_of={body.best_of} is less than n={n}: make at least as many as you want", "best_of")
    if num_sequences > n and body.stream:
        raise invalid("best_of cannot be streamed, as the best is known only at the end: use n", "best_of")
    if body.suffix is not None:
        raise invalid("suffix is not supported, as models here write from left to right: leave it out", "suffix")
    if body.max_tokens == 0 and not body.echo:
        raise invalid("max_tokens=0 gives nothing: use at least 1, or echo the prompt", "max_tokens")
    options.check_stream_options(body)


@dataclass
class CompletionResponseBuilder:
    """Writes the answer to a completion, whole (``full``) or streamed (``chunks``)."""

    service: Service
    generation: Generation
    body: CompletionRequest
    prompts: Sequence[str | list[int]]
    n: int
    num_sequences: int  # sequences of each prompt; the best n are given
    only_echo: bool  # no new tokens wanted: the one that the engine makes at least is left out

    def full(self) -> dict[str, Any]:
        requests = self.generation.requests
        shown = [i for first in range(0, len(requests), self.num_sequences) for i in self._best(first)]
        chosen = [self._choice(place, index) for place, index in enumerate(shown)]
        return self._envelope() | {"choices": chosen} | self._statistics()

    def _best(self, first: int) -> list[int]:
        """The ``n`` likeliest per token of the sequences ``first`` and following, or all in order."""
        own = list(range(first, first + self.num_sequences))
        if self.num_sequences == self.n:
            return own

        def per_token(index: int) -> float:
            steps = self.generation.steps[index]
            return sum((step.logprobs or {}).get(step.token_id, 0.0) for step in steps) / max(1, len(steps))

        return sorted(own, key=per_token, reverse=True)[: self.n]

    async def chunks(self) -> AsyncGenerator[Chunk]:
        """An event for each step of each sequence; the last one, or one of its own with usage, has the statistics."""
        with_usage = wants_usage(self.body)
        begin = self._envelope()
        writers: dict[int, CompletionLogprobs] = {}
        running = len(self.generation.requests)
        async with aclosing(self.generation.bursts()) as bursts:
            async for index, steps in bursts:
                part = partial(self._part, index, steps, writers)
                echoes = self.body.echo and index not in writers
                choice = await self.service.executors.write(part, self.generation.size) if echoes else part()
                usage = running_usage(self.body, self.generation, self.num_sequences, completion=not self.only_echo)
                running -= choice["finish_reason"] is not None
                end = {} if running or with_usage else self._statistics(usage=False)
                details = self.body.token_details or self.body.draft_details or self.body.return_token_ids
                if choice["text"] or choice["finish_reason"] or choice["logprobs"] or details:
                    chunk = begin | usage | {"choices": [choice]} | end
                    write = partial(to_long_json, chunk)
                    yield await self.service.executors.write(write, self.generation.size) if echoes else chunk
        if with_usage:
            yield begin | {"choices": []} | self._statistics()

    def _envelope(self) -> dict[str, Any]:
        return envelope(self.generation, "text_completion")

    def _statistics(self, usage: bool = True) -> dict[str, Any]:
        return usage_and_timings(
            self.generation.requests, self.num_sequences, usage=usage, completion=not self.only_echo
        )

    def _choice(self, place: int, index: int) -> dict[str, Any]:
        request, steps = self.generation.requests[index], self.generation.steps[index]
        return self._part(index, steps, {}) | {"index": place, "finish_reason": request.finish_reason}

    def _part(self, index: int, steps: list[StepOutput], writers: dict[int, CompletionLogprobs]) -> dict[str, Any]:
        """The choice that some of a sequence's tokens make; the first part has the echo, if one was asked for."""
        request = self.generation.requests[index]
        finish = steps[-1].finish_reason if steps else request.finish_reason
        shown = [] if self.only_echo else steps
        opening = index not in writers
        writer = writers.setdefault(index, CompletionLogprobs(self.service.tokenizer, self.body.logprobs or 0))
        echo = self._echo(index, request) if opening and self.body.echo else ""
        text = echo + "".join(step.text for step in shown)
        logprobs = None
        if self.body.logprobs is not None:
            own = [(step.token_id, step.logprobs or {}) for step in shown]
            before = partial(prompt_rows, request) if opening and self.body.echo else tuple
            logprobs = writer.lists(lambda: chain(before(), own))
        choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish, "seed": request.seed}
        return choice | token_fields(self.service.tokenizer, self.body, request, shown, opening=opening)

    def _echo(self, index: int, request: EngineRequest) -> str:
        prompt = self.prompts[index // self.num_sequences]
        return prompt if isinstance(prompt, str) else self.service.tokenizer.decode(prompt, skip_special_tokens=False)
