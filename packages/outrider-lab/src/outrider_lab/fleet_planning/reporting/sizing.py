"""Finds the smallest number of replicas that keeps a promise, by simulation."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from outrider.errors import InvalidRequestError
from outrider_lab.fleet_planning.reporting.report import Summary, summarize
from outrider_lab.fleet_planning.simulation.run import Fleet, SimulatedRun
from outrider_lab.fleet_planning.simulation.simulate import simulate
from outrider_lab.fleet_planning.workload import Workload

MAX_REPLICAS = 10_000


@dataclass(frozen=True, kw_only=True)
class Promise:
    """Limits in seconds for 99% of requests; None: no limit, but answers must keep up with requests."""

    latency: float | None = None
    ttft: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("target_p99", self.latency), ("target_ttft", self.ttft)):
            if value is not None and not 0 < value < float("inf"):
                raise InvalidRequestError(f"{name}={value:g} is not valid: use a positive number", param=name)

    def kept(self, found: Summary) -> bool:
        late = self.latency is not None and found.latency_p99 > self.latency
        slow = self.ttft is not None and found.ttft_p99 > self.ttft
        return found.keeps_up and not late and not slow


@dataclass(frozen=True)
class Sizing:
    """The least number of replicas that keeps the promise. ``tried``: results by number of replicas."""

    replicas: int
    run: SimulatedRun
    tried: dict[int, Summary]


def least_work(fleet: Fleet, workload: Workload) -> float:
    """The replicas that decoding alone keeps busy, with full batches: a lower bound on their number."""
    m, batch = fleet.machine, fleet.machine.max_batch_size
    draft, length = m.draft, m.draft_lengths[batch]
    tokens = 1.0
    if draft is not None and length:
        tokens += draft.share * float((1 - draft.refusal[:length]).sum())
    step = m.step_seconds(min(batch, m.max_batched_tokens), batch, 0)
    decode = float((workload.outputs - 1).clip(0).sum()) / tokens / batch * step
    return decode / max(workload.duration, 1e-9)


def _least_latency(fleet: Fleet, workload: Workload) -> float:
    """A lower bound on the p99 latency: each request alone, its prompt cached and every draft token accepted."""
    machine = fleet.machine
    tokens = 1 + (max(machine.draft_lengths) if machine.draft is not None else 0)
    steps = np.ceil(workload.outputs / tokens)
    return machine.beside_seconds + float(np.quantile(steps, 0.99)) * machine.step_seconds(1, 1, 0)


def replicas_needed(
    fleet: Fleet,
    workload: Workload,
    promise: Promise,
    *,
    seed: int = 0,
    tick: Callable[[str, int], None] = lambda what, count: None,
) -> Sizing:
    """The smallest number of replicas that keeps a promise, found by doubling and halving.

    Raises:
        InvalidRequestError: no number of replicas keeps the promise.
    """
    tried: dict[int, Summary] = {}
    runs: dict[int, SimulatedRun] = {}

    def keeps(count: int) -> bool:
        if count not in tried:
            tick(f"{count} replicas", 0)
            runs[count] = simulate(replace(fleet, replicas=count), workload, seed=seed, tick=tick)
            tried[count] = summarize(runs[count])
        return promise.kept(tried[count])

    least = _least_latency(fleet, workload)
    if promise.latency is not None and least > promise.latency:
        raise InvalidRequestError(
            f"no number of replicas keeps target_p99={promise.latency:g}: decoding alone takes {least:.3g}s for the "
            "longest answers; use a faster machine, drafts, or a later target", param="target_p99",
        )  # fmt: skip
    low, high = 0, max(1, math.ceil(least_work(fleet, workload)))
    step = max(1, high // 4)
    while not keeps(high):
        if tried[high].utilization < 0.05 or high >= MAX_REPLICAS:
            found = tried[high]
            raise InvalidRequestError(
                f"no number of replicas keeps that promise: {high} are busy {found.utilization:.0%} of the time, and "
                f"p99 is {found.latency_p99:.3g}s to the last and {found.ttft_p99:.3g}s to the first token",
                param="target_p99",
            )
        low, high, step = high, high + step, 2 * step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if keeps(middle) else (middle, high)
    return Sizing(high, runs[high], dict(sorted(tried.items())))
