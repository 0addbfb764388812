"""Records when target and draft model run: the data of a trace diagram (Leviathan et al. 2023, figure 5)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from outrider.config import SamplingParams, SpeculationParams
from outrider.llm import LLM


@dataclass(frozen=True)
class TraceEvent:
    """One forward pass of a model. Seconds since the end of the first pass, which reads the prompt."""

    kind: str  # target, draft
    begin: float
    end: float


@dataclass
class Trace:
    """Runs of the models, and tokens, of one request."""

    events: list[TraceEvent] = field(default_factory=list)
    tokens: list[tuple[float, str]] = field(default_factory=list)  # the second of each token, and its origin


@contextmanager
def _timed(model: Any, kind: str, events: list[TraceEvent]) -> Iterator[None]:
    """Add every forward pass of ``model`` to ``events`` while the context lasts."""
    run = model.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        begin = time.perf_counter()
        try:
            return run(*args, **kwargs)
        finally:
            events.append(TraceEvent(kind, begin, time.perf_counter()))

    model.forward = forward
    try:
        yield
    finally:
        del model.forward  # the class's own again


def record(
    llm: LLM, prompt: Sequence[int], params: SamplingParams, speculation: SpeculationParams, draft_model: Any = None
) -> Trace:
    """Run one request, and record each model's passes, without the first one, which reads the prompt."""
    events: list[TraceEvent] = []
    trace = Trace()
    request = llm.request(list(prompt), params, speculation)
    with _timed(llm.model, "target", events):
        if draft_model is None:
            _run(llm, request, trace)
        else:
            with _timed(draft_model, "draft", events):
                _run(llm, request, trace)
    start = next(e.end for e in events if e.kind == "target")
    trace.events = [TraceEvent(e.kind, e.begin - start, e.end - start) for e in events if e.begin >= start]
    trace.tokens = [(at - start, origin) for at, origin in trace.tokens]
    return trace


def _run(llm: LLM, request: Any, trace: Trace) -> None:
    llm.engine.add(request)
    while request.finish_reason is None and request.error is None:
        outputs = llm.engine.step()
        now = time.perf_counter()
        trace.tokens += [(now, output.origin) for output in outputs]
