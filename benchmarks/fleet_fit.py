"""From calibrations to a simulated fleet, and what that gets wrong, for ``benchmarks.fleet_check``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.fleet_real import BESIDE, MEASURED, PROMPT, SHORT, TOKENS
from outrider_lab.fleet_planning.costs.ingress import split_costs
from outrider_lab.fleet_planning.costs.machine import Machine, from_dict
from outrider_lab.fleet_planning.simulation.run import Fleet
from outrider_lab.fleet_planning.simulation.simulate import simulate
from outrider_lab.fleet_planning.workload import Floats, Workload

Segment = dict[str, Any]
"""Requests that a real fleet served, with the calibrations before and after."""

SEEDS = 5  # simulations of each segment
DRAWS = 1000  # of the bootstrap


@dataclass(frozen=True)
class Served:
    """What became of the requests of a segment, in seconds; arrays are [requests], or [requests, seeds]."""

    first: Floats
    last: Floats
    span: float  # until the last answer
    hits: float  # share of prompt tokens
    resumed: float  # requests


@dataclass(frozen=True)
class Row:
    """A number of replicas and a policy: segments of a simulation and of the real fleet."""

    count: int
    routing: str
    simulated: list[Served]
    real: list[Served]


def fleet_of(segment: Segment) -> Fleet:
    """The fleet as it was calibrated."""
    machine, count = from_dict(segment["machine"]), int(segment["count"])
    waves = {
        name: {key: (segment["before"][name][key] + segment["after"][name][key]) / 2 for key in MEASURED}
        for name in segment["before"]
    }
    firsts = [first for when in ("before", "after") for first in segment[when]["1x1"]["firsts"]]
    shares_cores = segment["cores"] is not None
    machine = _with_steps(machine, waves, one_busy=shares_cores)
    machine = _with_ingress(machine, waves, firsts, count)
    away = segment.get("real", {}).get("killed", [])
    return Fleet(
        machine=machine, replicas=count, routing=segment["routing"], cores=segment["cores"],
        speeds=_speeds(waves, count) if shares_cores else (), kills=[tuple(kill) for kill in segment.get("kills", [])],
        restart=sum(away) / len(away) if away else 1.0,
    )  # fmt: skip


def _with_steps(machine: Machine, waves: Mapping[str, Mapping[str, float]], *, one_busy: bool) -> Machine:
    """The machine with what a server's step takes beside the forward pass."""
    context = PROMPT + 0.75 * TOKENS
    named = [(tuple(map(int, name.split("x"))), wave["token"]) for name, wave in waves.items() if "x" in name]
    used = [(n, token) for (busy, n), token in named if busy == 1 or not one_busy]
    rest = [token - machine.step_seconds(n, n, n * context) for n, token in used]
    per_sequence, overhead = np.polyfit([n for n, _ in used], rest, 1)
    return replace(
        machine,
        overhead=machine.overhead + float(overhead),
        per_sequence=machine.per_sequence + float(per_sequence),
    )


def _with_ingress(
    machine: Machine, waves: Mapping[str, Mapping[str, float]], firsts: Sequence[float], count: int
) -> Machine:
    """The machine with what a request takes beside steps."""
    long, short = (waves[name]["ingress_cpu"] for name in (f"{count}x{BESIDE}", "short"))
    step = machine.step_seconds(PROMPT, 1, 0, PROMPT - 1)
    return split_costs([first - step for first in firsts], short, long, lengths=(SHORT, TOKENS)).of(machine)


def _speeds(waves: Mapping[str, Mapping[str, float]], count: int) -> list[float]:
    """Of each replica by the number that are busy."""
    known = sorted({int(name.split("x")[0]) for name in waves if "x" in name})
    slower = [
        float(np.mean([waves[f"1x{n}"]["token"] / waves[f"{busy}x{n}"]["token"] for n in (1, BESIDE)]))
        for busy in known
    ]
    return [float(np.interp(n, known, slower)) for n in range(1, count + 1)]


def compare(segments: Sequence[Segment], workload: Callable[[float, int, float], Workload]) -> list[Row]:
    """What was simulated and what happened, for each number of replicas and policy."""
    rows: dict[tuple[int, str], Row] = {}
    for segment in segments:
        key = int(segment["count"]), str(segment["routing"])
        row = rows.setdefault(key, Row(*key, [], []))
        asked, fleet = workload(segment["rate"], segment["seed"], segment["seconds"]), fleet_of(segment)
        row.real.append(_real(segment["real"]))
        runs = [simulate(fleet, asked, seed=seed) for seed in range(SEEDS)]
        first, last = (np.stack([getattr(run, of) - run.arrived for run in runs], 1) for of in ("first", "finished"))
        counts = [count for run in runs for count in run.counts]
        read, reused = sum(count.read for count in counts), sum(count.reused for count in counts)
        end, resumed = (float(np.mean([getattr(run, of) for run in runs])) for of in ("end", "resumed"))
        row.simulated.append(Served(first, last, end, reused / (read + reused), resumed))
    return list(rows.values())


def _real(real: Mapping[str, Any]) -> Served:
    sent, first, last = (np.array([each[name] for each in real["times"]]) for name in ("sent", "first", "last"))
    return Served(first, last, float((sent + last).max()), real["hits"] / max(1, real["asked"]), real["resumed"])


MEASURES: dict[str, Callable[[Sequence[Served]], float]] = {
    "requests/s": lambda found: sum(len(each.first) for each in found) / sum(each.span for each in found),
    "first token p50": lambda found: float(np.quantile(np.concatenate([each.first.ravel() for each in found]), 0.5)),
    "first token p99": lambda found: float(np.quantile(np.concatenate([each.first.ravel() for each in found]), 0.99)),
    "latency p50": lambda found: float(np.quantile(np.concatenate([each.last.ravel() for each in found]), 0.5)),
    "latency p99": lambda found: float(np.quantile(np.concatenate([each.last.ravel() for each in found]), 0.99)),
    "prefix hits": lambda found: float(np.mean([each.hits for each in found])),
}


def errors(row: Row) -> dict[str, dict[str, float]]:
    """Simulated ÷ real − 1 of each measure, with a 95% interval: rounds, and requests of each, are drawn again."""
    rng = np.random.default_rng(0)
    drawn: dict[str, list[float]] = {name: [] for name in MEASURES}
    for _ in range(DRAWS):
        both: tuple[list[Served], list[Served]] = ([], [])
        for i in rng.integers(len(row.real), size=len(row.real)):
            picked = rng.integers(len(row.real[i].first), size=len(row.real[i].first))
            for side, found in zip(both, (row.simulated[i], row.real[i]), strict=True):
                side.append(replace(found, first=found.first[picked], last=found.last[picked]))
        for name, measure in MEASURES.items():
            drawn[name].append(measure(both[0]) / max(1e-9, measure(both[1])) - 1)
    result = {}
    for name, measure in MEASURES.items():
        a, b = measure(row.simulated), measure(row.real)
        low, high = np.quantile(drawn[name], (0.025, 0.975))
        result[name] = {"simulated": a, "real": b, "error": a / max(1e-9, b) - 1, "low": low, "high": high}
    return {name: {key: round(float(value), 4) for key, value in each.items()} for name, each in result.items()}


def show(title: str, rows: Sequence[Row]) -> dict[str, Any]:
    """Print each row's errors, and return them."""
    found = {}
    for row in rows:
        count = sum(len(each.first) for each in row.real)
        resumed = [sum(each.resumed for each in side) for side in (row.simulated, row.real)]
        print(f"{title}: {row.count} replicas, {row.routing}, {count} requests in {len(row.real)} rounds")
        if any(resumed):
            print(f"  {'resumed elsewhere':18} simulated {resumed[0]:8.1f}  real {resumed[1]:8.1f}")
        found[f"{row.count} {row.routing}"] = own = errors(row)
        for name, each in own.items():
            print(
                f"  {name:18} simulated {each['simulated']:8.3f}  real {each['real']:8.3f}  {each['error']:+6.1%}"
                f"  ({each['low']:+.1%} to {each['high']:+.1%})"
            )
    return found
