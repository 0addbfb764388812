"""OpenTelemetry traces of a request across ingress, replica and steps; nothing where they are not asked for."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

from outrider.engine.request import Request
from outrider.errors import ConfigError

MAX_STEPS = 64  # of a request that have spans of their own

_tracer: Any = None


def enable(component: str) -> None:
    """Send traces from now on, where the OTEL_* variables say. Raises ConfigError if the library is missing."""
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise ConfigError("--traces needs OpenTelemetry: pip install 'outrider[traces]', or leave it out") from None
    attributes = {"service.name": "outrider", "outrider.component": component}
    provider = TracerProvider(resource=Resource.create(attributes))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    use(provider.get_tracer("outrider"))


def use(tracer: Any) -> None:
    """Trace with ``tracer``; None: not at all."""
    global _tracer  # noqa: PLW0603  one for the process, as in OpenTelemetry itself
    _tracer = tracer


class TraceSpan:
    """A part of a request's work. On its own it does nothing."""

    header: Mapping[str, str] = {}
    """Headers with which another process continues the trace."""

    def step(self, tokens: int) -> None:
        """Record a step that gave the request ``tokens`` tokens."""

    def ended(self, request: Request) -> None:
        """Record the cost of a request."""

    def event(self, name: str, /, **attributes: Any) -> None:
        """Note that something happened."""


class _RealSpan(TraceSpan):
    def __init__(self, span: Any) -> None:
        from opentelemetry import trace
        from opentelemetry.propagate import inject

        self._span, self._steps, self._last = span, 0, time.time_ns()
        self._context = trace.set_span_in_context(span)
        carrier: dict[str, str] = {}
        inject(carrier, context=self._context)
        self.header = carrier

    def step(self, tokens: int) -> None:
        now = time.time_ns()
        if self._steps < MAX_STEPS:
            attributes = {"outrider.step": self._steps, "outrider.tokens": tokens}
            step = _tracer.start_span("outrider.step", self._context, start_time=self._last, attributes=attributes)
            step.end(now)
        self._steps, self._last = self._steps + 1, now

    def ended(self, request: Request) -> None:
        stats = request.stats
        self._span.set_attributes(
            {
                "gen_ai.usage.input_tokens": stats.prompt_tokens,
                "gen_ai.usage.output_tokens": stats.completion_tokens,
                "outrider.cached_tokens": stats.cached_prompt_tokens,
                "outrider.runs": stats.target_runs,
                "outrider.accepted_tokens": stats.num_accepted_draft_tokens,
                "outrider.queue_seconds": stats.queue_s,
                "outrider.finish_reason": request.finish_reason or "abort",
            }
        )

    def event(self, name: str, /, **attributes: Any) -> None:
        self._span.add_event(name, attributes)


@contextlib.contextmanager
def traced(name: str, parent: Mapping[str, str] | None, attributes: Mapping[str, Any]) -> Iterator[TraceSpan]:
    """A span around some work; ``parent`` is the ``header`` of the span that it belongs to."""
    if _tracer is None:
        yield TraceSpan()
        return
    from opentelemetry.propagate import extract

    context = extract(dict(parent)) if parent else None
    span = _tracer.start_span(name, context, attributes=dict(attributes))
    try:
        yield _RealSpan(span)
    except BaseException as error:
        span.record_exception(error)
        raise
    finally:
        span.end()
