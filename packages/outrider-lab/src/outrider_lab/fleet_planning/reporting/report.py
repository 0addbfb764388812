"""Summarises a simulated run: rates and percentiles."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from outrider_lab.fleet_planning.simulation.run import SimulatedRun
from outrider_lab.fleet_planning.workload import Floats

WARM_UP = 0.2  # share of the duration whose requests are not counted, while caches and batches fill


@dataclass(frozen=True)
class Summary:
    """Results of the requests that arrived between the warm-up and the end of arrivals. Seconds, and tokens."""

    replicas: int
    routing: str
    requests: int
    request_rate: float  # arrived requests a second
    request_throughput: float  # answered requests a second
    output_throughput: float  # tokens a second
    ttft_p50: float
    ttft_p99: float
    tpot_p50: float  # time per output token, the first one excluded
    tpot_p99: float
    latency_p50: float
    latency_p99: float
    in_system: float  # requests in the system, on average over the run
    utilization: float  # share of the run in which replicas are busy
    batch: float  # requests in a step, on average
    prefix_hit_rate: float  # share of prompt tokens found in the cache
    prompt_tokens_read: int
    acceptance: float | None  # accepted ÷ drafted
    preemptions: int
    failures: int
    resumed: int

    @property
    def keeps_up(self) -> bool:
        """Whether the throughput is the rate of requests, up to 5% and chance."""
        return self.request_throughput >= self.request_rate * (0.95 - 2 / math.sqrt(self.requests))

    def as_dict(self) -> dict[str, Any]:
        return {name: _rounded(value) for name, value in asdict(self).items()} | {"keeps_up": self.keeps_up}


def _rounded(value: Any) -> Any:
    return float(f"{value:.5g}") if isinstance(value, float) else value


def summarize(run: SimulatedRun, warm_up: float = WARM_UP) -> Summary:
    """Rates and percentiles of a run."""
    begin, end = warm_up * run.workload.duration, run.workload.duration
    counted = (run.arrived >= begin) & (run.arrived < end)
    if not counted.any():
        begin, counted = 0.0, np.ones(len(run.arrived), dtype=bool)
    finished = (run.finished >= begin) & (run.finished < end)
    span = max(end - begin, 1e-9)
    latency, ttft = (run.finished - run.arrived)[counted], (run.first - run.arrived)[counted]
    more = run.workload.outputs[counted] > 1
    tpot = (latency - ttft)[more] / (run.workload.outputs[counted][more] - 1)
    counts = run.counts
    steps, busy = sum(c.steps for c in counts), sum(c.busy for c in counts)
    read, reused = sum(c.read for c in counts), sum(c.reused for c in counts)
    drafted = sum(c.drafted for c in counts)
    return Summary(
        replicas=len(counts),
        routing=run.fleet.routing,
        requests=int(counted.sum()),
        request_rate=float(counted.sum()) / span,
        request_throughput=float(finished.sum()) / span,
        output_throughput=float(run.workload.outputs[finished].sum()) / span,
        ttft_p50=_quantile(ttft, 0.5),
        ttft_p99=_quantile(ttft, 0.99),
        tpot_p50=_quantile(tpot, 0.5),
        tpot_p99=_quantile(tpot, 0.99),
        latency_p50=_quantile(latency, 0.5),
        latency_p99=_quantile(latency, 0.99),
        in_system=run.waiting / run.end if run.end else 0.0,
        utilization=busy / len(counts) / run.end if run.end else 0.0,
        batch=sum(c.sequences for c in counts) / max(1, steps),
        prefix_hit_rate=reused / max(1, read + reused),
        prompt_tokens_read=read,
        acceptance=sum(c.accepted for c in counts) / drafted if drafted else None,
        preemptions=sum(c.preemptions for c in counts),
        failures=run.failures,
        resumed=run.resumed,
    )


def _quantile(values: Floats, share: float) -> float:
    return float(np.quantile(values, share)) if len(values) else 0.0


def table(found: Summary, name: str) -> list[str]:
    """The lines of a report. ``name``: the machine's."""
    f = found
    accepted = "" if f.acceptance is None else f", {f.acceptance:.0%} of draft tokens accepted"
    trouble = f"{f.failures} failures, {f.resumed} requests resumed elsewhere, {f.preemptions} preemptions"
    return [
        f"{f.replicas} replicas of {name}, routing {f.routing}, {f.requests:,} requests",
        "",
        f"{'':22}{'p50':>10}{'p99':>10}",
        f"{'time to first token':22}{f.ttft_p50:9.3f}s{f.ttft_p99:9.3f}s",
        f"{'time per token':22}{1e3 * f.tpot_p50:8.2f}ms{1e3 * f.tpot_p99:8.2f}ms",
        f"{'latency':22}{f.latency_p50:9.3f}s{f.latency_p99:9.3f}s",
        "",
        f"came {f.request_rate:,.2f} requests/s, answered {f.request_throughput:,.2f} requests/s, "
        f"{f.output_throughput:,.0f} tokens/s" + ("" if f.keeps_up else ": the queue grows, use more replicas"),
        f"replicas busy {f.utilization:.0%}, {f.batch:.1f} requests a step, "
        f"{f.prefix_hit_rate:.0%} of prompt tokens from the cache{accepted}",
        *([trouble] if f.failures or f.preemptions else []),
    ]
