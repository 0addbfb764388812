"""Arrival patterns of requests (closed loop, Poisson), with the time of each token."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from outrider.config import SamplingParams, SpeculationParams
from outrider.engine.request import Request
from outrider.engine.stats import RequestStats
from outrider.llm import LLM


@dataclass
class ServedRequest:
    """One request's timings. ``sent`` is in seconds after the start, ``times`` in seconds after ``sent``."""

    sent: float
    times: list[float] = field(default_factory=list)  # of every token
    tokens: list[int] = field(default_factory=list)
    stats: RequestStats = field(default_factory=RequestStats)

    @property
    def ttft(self) -> float:
        """Time to the first token."""
        return self.times[0]

    @property
    def latency(self) -> float:
        """Time to the last token."""
        return self.times[-1]

    @property
    def inter_token_latencies(self) -> list[float]:
        """Seconds between each token and the one before; 0 within a step."""
        return [b - a for a, b in zip(self.times, self.times[1:], strict=False)]


def closed_loop(
    llm: LLM,
    prompts: Sequence[list[int]],
    params: SamplingParams,
    speculation: SpeculationParams,
    concurrency: int,
    salt: str = "",
) -> list[ServedRequest]:
    """``concurrency`` clients; each sends its next request when its last one is answered."""
    return _serve(llm, prompts, params, speculation, [0.0] * len(prompts), concurrency, salt)


def poisson(
    llm: LLM,
    prompts: Sequence[list[int]],
    params: SamplingParams,
    speculation: SpeculationParams,
    rate: float,
    salt: str = "",
    seed: int = 0,
) -> list[ServedRequest]:
    """Requests that arrive at random, ``rate`` a second on average, independent of running ones."""
    rng, now, arrivals = random.Random(seed), 0.0, []
    for _ in prompts:
        arrivals.append(now)
        now += rng.expovariate(rate)
    return _serve(llm, prompts, params, speculation, arrivals, len(prompts), salt)


def _serve(
    llm: LLM,
    prompts: Sequence[list[int]],
    params: SamplingParams,
    speculation: SpeculationParams,
    arrivals: Sequence[float],
    max_concurrency: int,
    salt: str,
) -> list[ServedRequest]:
    requests: list[Request] = [llm.request(prompt, params, speculation) for prompt in prompts]
    served: dict[str, ServedRequest] = {}
    waiting = list(zip(requests, arrivals, strict=True))
    began = time.perf_counter()
    running = 0
    try:
        while waiting or running:
            now = time.perf_counter() - began
            while waiting and waiting[0][1] <= now and running < max_concurrency:
                request, arrival = waiting.pop(0)
                # A closed-loop client sends when its last request is answered, an open-loop client on arrival.
                served[request.id] = ServedRequest(
                    sent=max(arrival, now) if max_concurrency < len(prompts) else arrival
                )
                request.cache_salt = salt
                llm.engine.add(request)
                running += 1
            if not running:
                time.sleep(max(0.0, waiting[0][1] - now))
                continue
            outputs = llm.engine.step()
            now = time.perf_counter() - began
            for output in outputs:
                one = served[output.request_id]
                one.times.append(now - one.sent)
                one.tokens.append(output.token_id)
            running = sum(
                request.finish_reason is None and request.error is None for request in requests if request.id in served
            )
    finally:  # after an interruption too, leave the engine without requests
        for id in served:
            llm.engine.abort(id)
    for request in requests:
        if request.error is not None:
            raise request.error
        served[request.id].stats = request.stats
    return [served[request.id] for request in requests]
