"""Prometheus metrics. Names follow vLLM's, with ``outrider:`` in front, or with its own prefix for its dashboards."""

from __future__ import annotations

import collections
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, Sample
from prometheus_client.registry import Collector

from outrider.engine.engine import Engine
from outrider.engine.engine_stats import EngineStats, SourceStats
from outrider.engine.request import Request

PREFIX = "outrider"
OLDER = {"inter_token_latency_seconds": "time_per_output_token_seconds", "kv_cache_usage_perc": "gpu_cache_usage_perc"}
"""Names of vLLM's own, to those that its versions 0 had, which many dashboards use."""
FIRST_TOKEN = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
BETWEEN_TOKENS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5)
WHOLE = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600)
TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536)


class ServerMetrics:
    """Counters of the server as a whole, whichever model answers."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.in_progress = Gauge("outrider:http_requests_in_progress", "Requests being answered.", registry=registry)
        labels = ("method", "path", "status")
        self.http = Counter("outrider:http_requests", "HTTP requests answered.", labels, registry=registry)
        slow = "Connections cut because their reader was too slow."
        self.dropped = Counter("outrider:slow_readers_dropped", slow, registry=registry)


class EngineCollector(Collector):
    """Reads the counts of one engine at a time, and adds those of the engines before it."""

    def __init__(self) -> None:
        self._counts: tuple[Engine | None, EngineStats] = (None, EngineStats())  # threads replace and read it at once
        self._total = 1

    def watch(self, engine: Engine) -> None:
        self._total = max(1, engine.memory.free_kv_tokens())
        self._counts = (engine, self._counts[1])

    def unwatch(self) -> None:
        """Keep the engine's counts, and let go of the engine, which has stopped."""
        engine, before = self._counts
        self._counts = (None, before if engine is None else _sum(before, engine.stats))

    def collect(self) -> Iterable[Metric]:
        (engine, stats), used = self._counts, 0.0
        if engine is not None:
            stats = _sum(stats, engine.stats)
            used = 1 - engine.memory.free_kv_tokens() / self._total
        busy = engine is not None and engine.busy
        yield _gauge("num_requests_running", "Sequences that run.", stats.running if busy else 0)
        yield _gauge("num_requests_waiting", "Sequences that wait for a place.", stats.waiting if busy else 0)
        yield _gauge("kv_cache_usage_perc", "Share of the cache's tokens in use, 0 to 1.", min(1.0, max(0.0, used)))
        yield _counter("num_preemptions", "Sequences that gave up their place for lack of memory.", stats.preemptions)
        yield _counter("generation_tokens", "Tokens the engine committed.", stats.tokens)
        yield _counter("engine_steps", "Steps of the engine.", stats.steps)
        yield _counter("engine_busy_seconds", "Time spent in steps.", stats.busy_s)
        yield _counter("spec_decode_draft_seconds", "Time spent in draft sources.", stats.draft_s)
        yield from _speculation(stats)


def _sum(before: EngineStats, now: EngineStats) -> EngineStats:
    """Both engines' counts, with the state of the second; it changes them on another thread, so they are copied."""
    sources = dict(before.sources)
    for name, stats in dict(now.sources).items():
        other = sources.get(name, SourceStats())
        sources[name] = SourceStats(
            other.num_drafts + stats.num_drafts,
            other.num_draft_tokens + stats.num_draft_tokens,
            other.num_accepted_draft_tokens + stats.num_accepted_draft_tokens,
            other.accepted_at + collections.Counter(dict(stats.accepted_at)),
        )
    return EngineStats(
        steps=before.steps + now.steps,
        tokens=before.tokens + now.tokens,
        waiting=now.waiting,
        running=now.running,
        preemptions=before.preemptions + now.preemptions,
        busy_s=before.busy_s + now.busy_s,
        draft_s=before.draft_s + now.draft_s,
        sources=sources,
    )


def _speculation(stats: EngineStats) -> Iterable[Metric]:
    def family(name: str, text: str, *labels: str) -> CounterMetricFamily:
        return CounterMetricFamily(f"outrider:spec_decode_{name}", text, labels=["source", *labels])

    drafts = family("num_drafts", "Drafts scored.")
    drafted = family("num_draft_tokens", "Draft tokens scored.")
    accepted = family("num_accepted_tokens", "Draft tokens accepted.")
    by_position = family("num_accepted_tokens_per_pos", "Draft tokens accepted at each depth.", "position")
    for source, counts in stats.sources.items():
        drafts.add_metric([source], counts.num_drafts)
        drafted.add_metric([source], counts.num_draft_tokens)
        accepted.add_metric([source], counts.num_accepted_draft_tokens)
        for position, count in sorted(counts.accepted_at.items()):
            by_position.add_metric([source, str(position)], count)
    return (drafts, drafted, accepted, by_position)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"outrider:{name}", text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"outrider:{name}", text, value=value)


class Metrics:
    """Counters of one model. The engine's own counts are read at each scrape."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._engine = EngineCollector()
        self._is_watching = False

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"outrider:{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: Iterable[float]) -> Histogram:
            return Histogram(f"outrider:{name}", text, buckets=tuple(buckets), registry=registry)

        self.admitted = Gauge("outrider:num_sequences_admitted", "Sequences that hold a place.", registry=registry)
        self.rejected = counter("requests_rejected", "Requests refused because the queue was full.")
        self.requests = counter("request_success", "Sequences that ended, by how they did.", "finished_reason")
        self.prompt_tokens = counter("prompt_tokens", "Prompt tokens of sequences that ended.")
        self.cached_tokens = counter("prefix_cache_hits", "Prompt tokens that were found in the cache.")
        self.queried_tokens = counter("prefix_cache_queries", "Prompt tokens that were looked for in the cache.")
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
        """Report the counts of ``engine`` from now on, added to those of earlier engines."""
        self._engine.watch(engine)
        if not self._is_watching:
            self.registry.register(self._engine)
            self._is_watching = True

    def unwatch(self) -> None:
        """Let go of the engine; its counts stay."""
        self._engine.unwatch()

    def finished(self, request: Request, seconds: float) -> None:
        """Count a sequence that has ended or was given up."""
        stats = request.stats
        reason = "error" if request.error is not None else request.finish_reason or "abort"
        self.requests.labels(reason).inc()
        self.prompt_tokens.inc(stats.prompt_tokens)
        if request.times.started is not None:
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


def exposition(parts: Sequence[tuple[CollectorRegistry, Mapping[str, str]]], prefix: str = PREFIX) -> bytes:
    """Prometheus' text of several registries, each with labels of its own.

    ``prefix``: of the names. Samples of one name and the same labels are added up.
    """
    return generate_latest(_Joined(parts, prefix))


class _Joined(CollectorRegistry):
    """Other registries' metrics under other names, with more labels; under vLLM's, also those of its versions 0."""

    def __init__(self, parts: Sequence[tuple[CollectorRegistry, Mapping[str, str]]], prefix: str) -> None:
        super().__init__()
        self._parts, self._prefix = parts, prefix

    def collect(self) -> Iterator[Metric]:
        found: dict[str, list[tuple[Metric, Mapping[str, str]]]] = {}
        for registry, labels in self._parts:
            for metric in registry.collect():
                found.setdefault(metric.name, []).append((metric, labels))
        for name, several in found.items():
            own = name.removeprefix(f"{PREFIX}:")
            yield self._as(own, several)
            if self._prefix != PREFIX and own in OLDER:
                yield self._as(OLDER[own], several)

    def _as(self, name: str, several: Sequence[tuple[Metric, Mapping[str, str]]]) -> Metric:
        full, first = f"{self._prefix}:{name}", several[0][0]
        joined = Metric(full, first.documentation, first.type)
        found: dict[tuple[object, ...], Sample] = {}
        for metric, labels in several:
            for sample in metric.samples:
                label = dict(labels) | sample.labels
                key = (sample.name, *sorted(label.items()))
                known = found.get(key)
                value = sample.value if known is None else _together(sample.name, known.value, sample.value)
                named = full + sample.name.removeprefix(metric.name)
                found[key] = sample._replace(name=named, labels=label, value=value)
        joined.samples = list(found.values())
        return joined


def _together(name: str, one: float, other: float) -> float:
    """A share is that of the model with the largest, and a beginning the latest; all else adds up."""
    return max(one, other) if name.endswith(("_perc", "_created")) else one + other
