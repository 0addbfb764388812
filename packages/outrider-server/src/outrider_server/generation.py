"""One HTTP request on its way through the engine: admitted, run, answered whole or as a stream.

Every endpoint that generates ends with ``respond`` and gives it a ``ResponseBuilder``, which writes the answer in the
words of its API.
"""

from __future__ import annotations

import asyncio
import math
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Protocol

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from outrider.config import SamplingParams, SpeculationParams
from outrider.engine.request import Request, StepOutput
from outrider.errors import EngineDeadError
from outrider.tokenizer.detokenizer import IncrementalDetokenizer
from outrider_server.http.context import by_deadline, deadline_of, too_late, unless_disconnected
from outrider_server.http.errors import ApiError, invalid, to_json, to_long_json
from outrider_server.http.logs import log_generation
from outrider_server.http.stream import OPENAI_EVENTS, Chunk, EventStream, StreamFormat
from outrider_server.said import Said
from outrider_server.service import Service

Prompt = list[int] | dict[str, Any]
"""Token ids; with images, a prompt as ``LLM.read`` takes it."""

MAX_DRAFT = 16  # nodes of a usual draft, at most
LONG = 128  # tokens and alternatives in an answer that is no longer written on the loop: some end in the same step


class ResponseBuilder(Protocol):
    """Writes the answer to one request, whole or chunk by chunk."""

    @property
    def generation(self) -> Generation:
        """The sequences that are answered."""

    def full(self) -> Any:
        """The JSON answer, once all sequences have ended."""

    def chunks(self) -> AsyncGenerator[Chunk]:
        """The events of a stream, as tokens come."""


async def respond(
    request: HttpRequest,
    start: Coroutine[Any, Any, ResponseBuilder],
    *,
    stream: bool,
    obfuscate: bool = False,
    form: StreamFormat = OPENAI_EVENTS,
) -> Response:
    """Await ``start`` and answer with the builder that it returns. A client that disconnects ends its sequences.

    ``form``: how a stream is written. ``obfuscate``: see ``EventStream``.
    """
    builder = await by_deadline(request, start)
    generation, reservation = builder.generation, builder.generation.reservation
    service, generation.deadline = generation.service, deadline_of(request)
    if stream:
        chunks, settings = builder.chunks(), service.settings
        return EventStream(chunks, settings, form, obfuscate=obfuscate, on_end=reservation.release)
    try:
        await unless_disconnected(request, generation.complete())
    finally:
        reservation.release()  # also if the client disconnected before anything ran

    if generation.size > LONG:
        content = await service.executors.write(lambda: to_long_json(builder.full()), generation.size)
    else:  # an answer may repeat parts of a large request
        content = await service.executors.run_if_large(lambda: to_json(builder.full()))
    return Response(content, media_type="application/json")


class Reservation:
    """Room for ``count`` sequences, running or waiting, given back exactly once. ApiError 429 if there is none."""

    def __init__(self, service: Service, count: int, tenant: str) -> None:
        """Every tenant has as much room as if it were alone: other tenants' sequences fill none of it."""
        max_batch_size = service.engine.llm.config.max_batch_size
        room = max_batch_size + service.settings.max_queue
        if count > room:
            raise invalid(f"{count} sequences in one request are more than the {room} this server holds: ask for fewer")
        held = service.sequences_of[tenant]
        if held + count > room:
            service.metrics.rejected.inc()
            seconds = service.metrics.seconds_until_room(max_batch_size)
            raise ApiError(
                429,
                f"{held} sequences run or wait, and there is room for {room}: try again in {seconds} s",
                code="queue_full",
                headers={"Retry-After": str(seconds)},
            )
        self._sequences_of, self.tenant, self._count = service.sequences_of, tenant, count
        self._sequences_of[tenant] += count

    def release(self) -> None:
        self._sequences_of[self.tenant] -= self._count
        self._count = 0


@dataclass
class Generation:
    """The sequences of one HTTP request, prompt by prompt, and the tokens they have given so far."""

    service: Service
    requests: Sequence[Request]
    reservation: Reservation
    id: str
    model: str
    deadline: float = math.inf  # by the event loop's clock
    slot: int | None = None  # that the caller named, as llama.cpp's clients do
    steps: list[list[StepOutput]] = field(init=False)
    created: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self) -> None:
        self.steps = [[] for _ in self.requests]
        self._began = time.perf_counter()
        self._keeps_sessions = self.service.engine.llm.sessions is not None

    @classmethod
    async def start(
        cls,
        service: Service,
        tokenize: Callable[[], Sequence[Prompt]],
        params: SamplingParams,
        speculation: SpeculationParams,
        *,
        prompts: int = 1,
        with_images: bool = False,
        shown_ids: frozenset[int] = frozenset(),
        id_prefix: str,
        model: str,
        tenant: str,
        **scheduling: Any,
    ) -> Generation:
        """Admit and check ``prompts`` prompts with ``params.n`` outputs each. ``tokenize`` is called on a thread.

        ``with_images``: prompts may have images. ``shown_ids``: special tokens that stay in the text.
        Raises ApiError, or any error of ``LLM.requests``.
        """
        service.check_speculation(speculation)
        reservation = Reservation(service, prompts * params.n, tenant)
        llm = service.engine.llm

        def make() -> list[Request]:
            requests: list[Request] = []
            if isinstance(speculation.prediction, str):
                service.check_length(speculation.prediction, "prediction")
            for prompt in tokenize():
                read = prompt if isinstance(prompt, list) else service.read_images(prompt, tenant=tenant, **scheduling)
                requests += llm.requests(read, params, speculation, tenant=tenant, **scheduling)
            for request in requests:
                if isinstance(request.written.detokenizer, IncrementalDetokenizer):
                    request.written.detokenizer.show(shown_ids)
            return requests

        try:
            if params.structured is not None:
                await service.executors.compile(llm.grammars, params.structured, scheduling.get("cache_salt", ""))
            run = service.executors.read_images if with_images else service.executors.run
            requests = await run(make)
        except BaseException:
            reservation.release()
            raise
        return cls(service, requests, reservation, new_id(id_prefix), model)

    async def bursts(self) -> AsyncGenerator[tuple[int, list[StepOutput]]]:
        """(sequence, tokens of one step) until all are finished; everything is given back when it ends.

        Raises ApiError 504 when the time for a request is up, and any error of ``AsyncLLM.bursts``.
        """
        service, times = self.service, [0.0] * len(self.requests)
        bursts = service.engine.bursts(self.requests, backlog=service.settings.limits.max_backlog)
        try:
            async with aclosing(bursts):
                while True:
                    async with asyncio.timeout_at(self.deadline):
                        item = await anext(bursts, None)
                    if item is None:
                        break
                    index, steps = item
                    self._measure(index, len(steps), times)
                    self.steps[index] += steps
                    yield index, steps
        except TimeoutError:
            raise too_late(service.settings) from None
        except EngineDeadError:
            raise service.stopped() from None
        finally:
            self.reservation.release()
            log_generation(self.id, self.requests)
            service.record(self.id, self.model, self.requests, self.steps)
            for request in self.requests:
                if self._keeps_sessions:
                    said = Said(request.prefix_keys, request.prefix_salt)
                    service.said.note(self.reservation.tenant, self.slot, said)
                service.metrics.finished(request, time.perf_counter() - self._began)

    def _measure(self, index: int, count: int, times: list[float]) -> None:
        now = time.perf_counter()
        if not times[index]:
            self.service.metrics.first_token.observe(now - self.requests[index].times.arrived)
        else:
            for _ in range(count):
                self.service.metrics.between_tokens.observe((now - times[index]) / count)
        times[index] = now

    @property
    def size(self) -> int:
        """How much there is to write: tokens, the alternatives to them, and numbers of embeddings."""
        params = self.requests[0].params
        each = 1 + (params.logprobs or 0) + MAX_DRAFT * self.requests[0].reports_drafts
        rows = sum(map(len, self.steps)) * each
        rows += sum(len(found) for each in self.requests if (found := each.prompt_report.hidden_sum) is not None)
        weight = 1 / 32 if params.prompt_logprobs is None else 1 + params.prompt_logprobs  # prompts alone are one text
        return rows + round(weight * sum(request.prompt_length for request in self.requests))

    async def complete(self) -> None:
        """Run to the end."""
        async with aclosing(self.bursts()) as bursts:
            async for _ in bursts:
                pass


def new_id(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex}"
