"""Prometheus metrics. Names follow vLLM's, with ``outrider:`` in front, or with its own prefix for its dashboards."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from outrider.engine.engine import Engine
from outrider.engine.request import Request

PREFIX = "outrider"
OLDER = {"inter_token_latency_seconds": "time_per_output_token_seconds", "kv_cache_usage_perc": "gpu_cache_usage_perc"}
"""Names of vLLM's own, to those that its versions 0 had, which many dashboards use."""
FIRST_TOKEN = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
BETWEEN_TOKENS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5)
WHOLE = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600)
TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536)


class Metrics:
    """Counters of one server. The engine's own counts are read at each scrape."""

    def __init__(self, prefix: str = PREFIX, labels: Mapping[str, str] | None = None) -> None:
        """``prefix``: of the names in ``text``; ``labels`` are added to every sample there."""
        self.registry = registry = CollectorRegistry()
        self._renamed = _Renamed(registry, prefix, labels or {})

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"outrider:{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: Iterable[float]) -> Histogram:
            return Histogram(f"outrider:{name}", text, buckets=tuple(buckets), registry=registry)

        self.in_progress = Gauge("outrider:http_requests_in_progress", "Requests being answered.", registry=registry)
        self.admitted = Gauge("outrider:num_sequences_admitted", "Sequences that hold a place.", registry=registry)
        self.http = counter("http_requests", "HTTP requests answered.", "method", "path", "status")
        self.rejected = counter("requests_rejected", "Requests refused because the queue was full.")
        self.requests = counter("request_success", "Sequences that ended, by how they did.", "finished_reason")
        self.prompt_tokens = counter("prompt_tokens", "Prompt tokens of sequences that ended.")
        self.cached_tokens = counter("prefix_cache_hits", "Prompt tokens that were found in the cache.")
        self.queried_tokens = counter("prefix_cache_queries", "Prompt tokens that were looked for in the cache.")
        self.dropped = counter("slow_readers_dropped", "Connections cut because their reader was too slow.")
        self.first_token = histogram("time_to_first_token_seconds", "From arrival to the first token.", FIRST_TOKEN)
        self.between_tokens = histogram(
            "inter_token_latency_seconds",
            "Time per token after the first; the tokens of one step share its time.",
            BETWEEN_TOKENS,
        )
        self.whole = histogram("e2e_request_latency_seconds", "From arrival to the last token.", WHOLE)
        self.per_token = histogram(
            "request_time_per_output_token_seconds", "A sequence's mean time per token after the first.", BETWEEN_TOKENS
        )
        self.reading = histogram("request_prefill_time_seconds", "From the first run to the first token.", FIRST_TOKEN)
        self.writing = histogram("request_decode_time_seconds", "From the first token to the last.", WHOLE)
        self.running = histogram("request_inference_time_seconds", "From the first run to the last token.", WHOLE)
        self.queued = histogram("request_queue_time_seconds", "From arrival to the first run.", FIRST_TOKEN)
        self.output_length = histogram("request_generation_tokens", "Output tokens of a sequence.", TOKENS)
        self.prompt_length = histogram("request_prompt_tokens", "Prompt tokens of a sequence.", TOKENS)
        self._usual_s = 1.0  # a sequence's time, as a moving average

    def watch(self, engine: Engine) -> None:
        """Report what ``engine`` counts from now on."""
        self.registry.register(_EngineCollector(engine))

    def finished(self, request: Request, seconds: float) -> None:
        """Count a sequence that has ended or was given up."""
        stats = request.stats
        reason = "error" if request.error is not None else request.finish_reason or "abort"
        self.requests.labels(reason).inc()
        self.prompt_tokens.inc(stats.prompt_tokens)
        if request.started is not None:
            self.queried_tokens.inc(stats.prompt_tokens)
            self.cached_tokens.inc(stats.cached_prompt_tokens)
            self.queued.observe(stats.queue_s)
        if request.finish_reason is not None:
            self.whole.observe(seconds)
            self.reading.observe(stats.prefill_s)
            if stats.completion_tokens > 1:
                self.per_token.observe(stats.decode_s / (stats.completion_tokens - 1))
            self.writing.observe(stats.decode_s)
            self.running.observe(stats.prefill_s + stats.decode_s)
            self.output_length.observe(stats.completion_tokens)
            self.prompt_length.observe(stats.prompt_tokens)
            self._usual_s += 0.1 * (seconds - self._usual_s)

    def seconds_until_room(self, max_batch_size: int) -> int:
        """When a place will be free, by how long sequences take lately: 1 to 60."""
        return min(60, max(1, math.ceil(self._usual_s / max_batch_size)))

    def text(self) -> bytes:
        return generate_latest(self._renamed)


class _Renamed(CollectorRegistry):
    """Another registry's metrics under other names, with more labels; under vLLM's, also those of its versions 0."""

    def __init__(self, registry: CollectorRegistry, prefix: str, labels: Mapping[str, str]) -> None:
        super().__init__()
        self._registry, self._prefix, self._labels = registry, prefix, dict(labels)

    def collect(self) -> Iterator[Metric]:
        for metric in self._registry.collect():
            own = metric.name.removeprefix(f"{PREFIX}:")
            yield self._as(own, metric)
            if self._prefix != PREFIX and own in OLDER:
                yield self._as(OLDER[own], metric)

    def _as(self, name: str, metric: Metric) -> Metric:
        full = f"{self._prefix}:{name}"
        renamed = Metric(full, metric.documentation, metric.type)
        renamed.samples = [
            sample._replace(name=full + sample.name.removeprefix(metric.name), labels=self._labels | sample.labels)
            for sample in metric.samples
        ]
        return renamed


class _EngineCollector(Collector):
    """Reads the engine's own counts; it changes them on another thread, so that copies are taken first."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._total = max(1, engine.memory.free_kv_tokens())

    def collect(self) -> Iterable[Metric]:
        engine, stats = self._engine, self._engine.stats
        busy = engine.busy
        yield _gauge("num_requests_running", "Sequences that run.", stats.running if busy else 0)
        yield _gauge("num_requests_waiting", "Sequences that wait for a place.", stats.waiting if busy else 0)
        used = 1 - engine.memory.free_kv_tokens() / self._total
        yield _gauge("kv_cache_usage_perc", "Share of the cache's tokens in use, 0 to 1.", min(1.0, max(0.0, used)))
        yield _counter("num_preemptions", "Sequences that gave up their place for lack of memory.", stats.preemptions)
        yield _counter("generation_tokens", "Tokens the engine committed.", stats.tokens)
        yield _counter("engine_steps", "Steps of the engine.", stats.steps)
        yield _counter("engine_busy_seconds", "Time spent in steps.", stats.busy_s)
        yield _counter("spec_decode_draft_seconds", "Time spent in draft sources.", stats.draft_s)
        yield from self._speculation()

    def _speculation(self) -> Iterable[Metric]:
        def family(name: str, text: str, *labels: str) -> CounterMetricFamily:
            return CounterMetricFamily(f"outrider:spec_decode_{name}", text, labels=["source", *labels])

        drafts = family("num_drafts", "Drafts scored.")
        drafted = family("num_draft_tokens", "Draft tokens scored.")
        accepted = family("num_accepted_tokens", "Draft tokens accepted.")
        by_position = family("num_accepted_tokens_per_pos", "Draft tokens accepted at each depth.", "position")
        for source, counts in dict(self._engine.stats.sources).items():
            drafts.add_metric([source], counts.num_drafts)
            drafted.add_metric([source], counts.num_draft_tokens)
            accepted.add_metric([source], counts.num_accepted_draft_tokens)
            for position, count in sorted(dict(counts.accepted_at).items()):
                by_position.add_metric([source, str(position)], count)
        return (drafts, drafted, accepted, by_position)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"outrider:{name}", text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"outrider:{name}", text, value=value)
