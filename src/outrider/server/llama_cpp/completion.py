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
from outrider.server.http.errors import invalid
from outrider.server.http.openapi import documented
from outrider.server.http.request_body import body_of
from outrider.server.http.stream import Chunk
from outrider.server.llama_cpp import options
from outrider.server.llama_cpp.schema import NativeRequest, NativeResponse, PromptObject
from outrider.server.openai import statistics
from outrider.server.openai.logprobs import native_content
from outrider.server.openai.options import scheduling
from outrider.server.openai.responses import answer
from outrider.server.service import Generation, Service, generation, new_id
from outrider.tokenizer.tokenizer import Tokenizer

router = APIRouter()

ANY_SLOT = -1  # places here are not for clients to choose, nor to come back to


@router.post("/completion", **documented(NativeRequest, NativeResponse))
@router.post("/completions", include_in_schema=False)
async def completion(request: Request, body: Annotated[NativeRequest, Depends(body_of(NativeRequest))]) -> Response:
    """Continue texts, in llama.cpp's words. With ``stream``, an event a token and one at the end."""
    service: Service = request.app.state.service
    return await answer(request, _job(service, body), stream=bool(body.stream), done=False)


async def _job(service: Service, body: NativeRequest) -> Job:
    model = service.check_model(body.model)
    options.check(body, service.settings.max_n)
    prompts = _prompts(body.prompt)
    if len(prompts) > service.settings.max_prompts:
        raise invalid(f"{len(prompts)} prompts in one request: send at most {service.settings.max_prompts}", "prompt")
    most = options.limit(body, service.settings.max_tokens)
    tokenizer, room = service.tokenizer, service.max_seq_len
    try:
        params = options.sampling(body, tokenizer, room if most is None else min(most, room))
        running = await generation(
            service,
            lambda: [_ids(tokenizer, prompt) for prompt in prompts],
            len(prompts),
            params,
            options.speculation(body, service.engine.llm.speculation),
            prefix="cmpl",
            model=model,
            scheduling=scheduling(body) | ({"cache_salt": new_id("alone")} if body.cache_prompt is False else {}),
        )
    except InvalidRequestError as error:
        raise options.renamed(error, body) from None
    return Job(service, running, body, params, most)


def _prompts(given: Any) -> list[Any]:
    """One prompt or several: a list with numbers in it is one prompt, of tokens and texts."""
    single = not isinstance(given, list) or any(isinstance(part, int) for part in given)
    prompts = [given] if single else given
    for prompt in prompts:
        if isinstance(prompt, PromptObject) and prompt.multimodal_data is not None:
            raise invalid("multimodal_data is not supported: this server reads text only", "prompt", "unsupported")
    return prompts


def _ids(tokenizer: Tokenizer, prompt: Any) -> list[int]:
    """The tokens of one prompt; what a model expects before a text is added only where the text comes first."""
    if isinstance(prompt, PromptObject):
        prompt = prompt.prompt_string
    parts: Sequence[int | str] = [prompt] if isinstance(prompt, str) else prompt
    ids: list[int] = []
    for place, part in enumerate(parts):
        ids += [part] if isinstance(part, int) else tokenizer.encode(part, add_special_tokens=place == 0)
    return ids


@dataclass
class Job:
    """A checked request and how its answer is written."""

    service: Service
    generation: Generation
    body: NativeRequest
    params: SamplingParams
    most: int | None  # tokens wanted; None: as many as the context holds

    def whole(self) -> dict[str, Any] | list[dict[str, Any]]:
        made = []
        for index, request in enumerate(self.generation.requests):
            steps = self.generation.steps[index]
            told = {"content": request.text, "tokens": list(request.output) if self.body.return_tokens else []}
            made.append(self._picked(self._end(index) | told | self._probabilities(steps)))
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
                    yield self._picked(self._end(index) | {"content": "", "tokens": []})

    def _part(self, index: int, step: StepOutput, count: int) -> dict[str, Any]:
        request = self.generation.requests[index]
        told: dict[str, Any] = {
            "index": index,
            "content": step.text,
            "tokens": [step.token_id],
            "stop": False,
            "id_slot": ANY_SLOT,
            "tokens_predicted": count,
            "tokens_evaluated": request.prompt_length,
        }
        if self.body.timings_per_token:
            told["timings"] = statistics.timings([request])
        return told | self._probabilities([step])

    def _end(self, index: int) -> dict[str, Any]:
        """What is told of a sequence at its end."""
        request = self.generation.requests[index]
        stats, tokenizer = request.stats, self.service.tokenizer
        params = replace(self.params, n=1, seed=request.seed)
        settings = options.settings(self.body, params, self.most, self.service.max_seq_len)
        return {
            "index": index,
            "id_slot": ANY_SLOT,
            "stop": True,
            "model": self.generation.model,
            "tokens_predicted": stats.completion_tokens,
            "tokens_evaluated": stats.prompt_tokens,
            "tokens_cached": stats.cached_prompt_tokens,
            "generation_settings": settings | {"seed": request.seed, "speculative.types": request.draft_name},
            "prompt": tokenizer.decode(request.prompt, skip_special_tokens=False),
            "has_new_line": "\n" in request.text,
            "truncated": _truncated(request, self.most),
            "stop_type": _stop_type(request),
            "stopping_word": request.stop_string or "",
            "system_fingerprint": self.service.fingerprint,
            "metrics": statistics.metrics([request]),
            "timings": statistics.timings([request]),
        }

    def _probabilities(self, steps: Sequence[StepOutput]) -> dict[str, Any]:
        top = self.body.n_probs
        return {"completion_probabilities": native_content(steps, self.service.tokenizer, top)} if top else {}

    def _picked(self, told: dict[str, Any]) -> dict[str, Any]:
        """The fields asked for: ``a/b`` is field b of a, under the name ``a/b``; those there are not are left out."""
        if not self.body.response_fields:
            return told
        found = ((path, _inside(told, path.split("/"))) for path in self.body.response_fields)
        return {path: value[0] for path, value in found if value}


def _inside(told: Any, path: Sequence[str]) -> list[Any]:
    """The value at ``path``, in a list that is empty if there is none."""
    for name in path:
        if not isinstance(told, Mapping) or name not in told:
            return []
        told = told[name]
    return [told]


def _stop_type(request: EngineRequest) -> str:
    if request.finish_reason == "length":
        return "limit"
    return "eos" if request.stop_string is None else "word"


def _truncated(request: EngineRequest, most: int | None) -> bool:
    """Whether the context, and not the request, set the end."""
    made = request.stats.completion_tokens
    return request.finish_reason == "length" and (most is None or made < most)
