"""What engines count themselves, as metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from outrider.engine.engine import Engine
from outrider.engine.stats import EngineStats, SourceStats


class EngineCollector(Collector):
    """Reads the counts of one engine at a time, and adds those of the engines before it."""

    def __init__(self) -> None:
        self._counts: tuple[Engine | None, EngineStats] = (
            None,
            EngineStats(),
        )  # one value: threads replace and read it
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
            other.accepted_at + Counter(dict(stats.accepted_at)),
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
