"""What stands between HTTP and the engine: is it ready, is there room, and who gets which tokens."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from outrider.async_llm import AsyncLLM
from outrider.config import SamplingParams, SpeculationParams
from outrider.engine.request import Request, StepOutput
from outrider.llm import LLM
from outrider.server.http.errors import ApiError, invalid, unavailable
from outrider.server.http.logs import note_sequences
from outrider.server.http.metrics import Metrics
from outrider.server.identity import fingerprint
from outrider.server.settings import ServerSettings
from outrider.tokenizer.tokenizer import Tokenizer

T = TypeVar("T")
State = Literal["loading", "ready", "draining", "dead"]


class Service:
    """One engine, its queue, its counters."""

    def __init__(self, settings: ServerSettings, model_name: str) -> None:
        """``model_name`` is what clients ask for, unless the settings name others."""
        self.settings = settings
        self.model_names = settings.served_model_names or (model_name,)
        self.metrics = Metrics()
        self.state: State = "loading"
        self.started = int(time.time())
        self.fingerprint = ""
        self.sequences = 0  # admitted and not yet finished
        self._llm: AsyncLLM | None = None

    def attach(self, llm: LLM, on_death: Callable[[], None] = lambda: None) -> None:
        """Start serving with a model that has been loaded. ``on_death`` is called if the engine ever dies."""

        def died(_: BaseException) -> None:
            self.state = "dead"
            on_death()

        self.fingerprint = fingerprint(llm)
        self.metrics.watch(llm.engine)
        self._llm = AsyncLLM(llm, on_death=died)
        self.state = "ready"

    def close(self) -> None:
        if self._llm is not None:
            self._llm.close()

    @property
    def engine(self) -> AsyncLLM:
        """Raises ApiError 503 while there is none to serve with."""
        if self.state == "loading" or self._llm is None:
            raise unavailable("the model is being loaded: try again", 2, "loading")
        if self.state == "dead":
            raise ApiError(503, "the engine has stopped: the server must be restarted", code="engine_dead")
        return self._llm

    @property
    def tokenizer(self) -> Tokenizer:
        return self.engine.llm.tokenizer

    @property
    def max_seq_len(self) -> int:
        return self.engine.llm.engine.max_seq_len

    def check_model(self, name: str | None) -> str:
        """The name to answer under; ApiError 404 if it is not served."""
        if name is None:
            return next((known for known in self.model_names if known != "*"), "outrider")
        if name in self.model_names or "*" in self.model_names:
            return name
        known = ", ".join(self.model_names)
        raise ApiError(
            404, f"the model {name[:80]!r} is not served here: use {known}", param="model", code="model_not_found"
        )

    def admit(self, count: int) -> Lease:
        """Reserve room for ``count`` sequences, running or waiting; ApiError 429 if there is none."""
        places = self.engine.llm.config.max_batch_size
        room = places + self.settings.max_queue
        if count > room:
            raise invalid(f"{count} sequences in one request are more than the {room} this server holds: ask for fewer")
        if self.sequences + count > room:
            self.metrics.rejected.inc()
            seconds = self.metrics.seconds_until_room(places)
            raise ApiError(
                429,
                f"{self.sequences} sequences run or wait, and there is room for {room}: try again in {seconds} s",
                code="queue_full",
                headers={"Retry-After": str(seconds)},
            )
        return Lease(self, count)

    async def off_loop(self, work: Callable[[], T]) -> T:
        """Run what takes time, such as reading a long text, beside the event loop."""
        return await asyncio.get_running_loop().run_in_executor(None, work)


class Lease:
    """Room in the queue, given back exactly once."""

    def __init__(self, service: Service, count: int) -> None:
        self._service, self._count = service, count
        service.sequences += count

    def release(self) -> None:
        self._service.sequences -= self._count
        self._count = 0


@dataclass
class Generation:
    """One HTTP request on its way: its sequences, prompt by prompt, and what they have given so far."""

    service: Service
    requests: Sequence[Request]
    lease: Lease
    id: str
    model: str
    steps: list[list[StepOutput]] = field(init=False)
    created: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self) -> None:
        self.steps = [[] for _ in self.requests]
        self._began = time.perf_counter()

    async def bursts(self) -> AsyncGenerator[tuple[int, list[StepOutput]]]:
        """(sequence, tokens of one step) until all are finished; everything is given back when it ends.

        Raises ApiError 504 when the time for a request is up, and what ``AsyncLLM.bursts`` raises.
        """
        service, times = self.service, [0.0] * len(self.requests)
        deadline = asyncio.get_running_loop().time() + service.settings.request_timeout
        bursts = service.engine.bursts(self.requests, backlog=service.settings.max_backlog)
        try:
            async with aclosing(bursts):
                while True:
                    async with asyncio.timeout_at(deadline):
                        item = await anext(bursts, None)
                    if item is None:
                        break
                    index, steps = item
                    self._measure(index, len(steps), times)
                    self.steps[index] += steps
                    yield index, steps
        except TimeoutError:
            seconds = f"{service.settings.request_timeout:g}"
            raise ApiError(
                504, f"the request took more than {seconds} s: ask for fewer tokens", code="timeout"
            ) from None
        finally:
            self.lease.release()
            note_sequences(self.id, self.requests, prompts=service.settings.log_prompts)
            for request in self.requests:
                service.metrics.finished(request, time.perf_counter() - self._began)

    def _measure(self, index: int, count: int, times: list[float]) -> None:
        now = time.perf_counter()
        if not times[index]:
            self.service.metrics.first_token.observe(now - self.requests[index].arrived)
        else:
            for _ in range(count):
                self.service.metrics.between_tokens.observe((now - times[index]) / count)
        times[index] = now

    async def complete(self) -> None:
        """Run to the end."""
        async with aclosing(self.bursts()) as bursts:
            async for _ in bursts:
                pass


def new_id(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex}"


async def generation(
    service: Service,
    prompts: Callable[[], Sequence[Any]],
    count: int,
    params: SamplingParams,
    speculation: SpeculationParams,
    *,
    prefix: str,
    model: str,
    scheduling: Mapping[str, Any],
) -> Generation:
    """Admit and check ``count`` prompts with ``params.n`` outputs each; ``prompts`` is called beside the event loop.

    Raises ApiError, or what ``LLM.requests`` raises.
    """
    lease = service.admit(count * params.n)
    llm = service.engine.llm

    def make() -> list[Request]:
        requests: list[Request] = []
        for ids in prompts():
            _check_length(ids, service.settings.max_prompt_tokens)
            requests += llm.requests(ids, params, speculation, **scheduling)
        return requests

    try:
        requests = await service.off_loop(make)
    except BaseException:
        lease.release()
        raise
    return Generation(service, requests, lease, new_id(prefix), model)


def _check_length(ids: Sequence[int], limit: int | None) -> None:
    if limit is not None and len(ids) > limit:
        raise invalid(f"the prompt has {len(ids)} tokens, and {limit} are allowed here: shorten it", "prompt")
