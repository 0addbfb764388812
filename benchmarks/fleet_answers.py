"""Questions put to the simulator of a fleet, and pictures of its answers.

    python -m benchmarks.fleet_answers FOLDER

How many machines for a rate of requests, what routing by prefix is worth, when drafting stops paying, and what
machines that only draft would give. The machine is a roofline of one H100 with a model of 8 billion parameters, so
the answers hold for that model of a machine; ``outrider plan --fleet`` gives them for a measured one.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from outrider_lab.fleet_planning.costs.machine import Machine, from_roofline
from outrider_lab.fleet_planning.reporting.plots import lines
from outrider_lab.fleet_planning.reporting.report import Summary, summarize
from outrider_lab.fleet_planning.reporting.sizing import Promise, replicas_needed
from outrider_lab.fleet_planning.simulation.run import Fleet
from outrider_lab.fleet_planning.simulation.simulate import simulate
from outrider_lab.fleet_planning.workload import Lengths, Traffic, Workload, synthesize
from outrider_lab.roofline import HARDWARE, ModelSize

MODEL, DRAFT, ALPHA = ModelSize(8e9), ModelSize(0.5e9), 0.7
PLAIN = from_roofline(MODEL, HARDWARE["H100"])
DRAFTS = from_roofline(MODEL, HARDWARE["H100"], draft=DRAFT, alpha=ALPHA)
CHAT = Traffic(rate=1000, duration=8, turns=3, think_s=4, prefix_len=1024, num_prefixes=64,
               input_len=Lengths("lognormal", 128, 64), output_len=Lengths("lognormal", 128, 64))  # fmt: skip
SINGLE = Traffic(rate=10, duration=30, input_len=Lengths("lognormal", 512, 256))
PROMISE = Promise(latency=4.0, ttft=0.5)


def run(machine: Machine, workload: Workload, replicas: int, **options: Any) -> Summary:
    return summarize(simulate(Fleet(machine=machine, replicas=replicas, **options), workload))


def machines() -> dict[str, list[tuple[float, float]]]:
    """Machines by rate of requests."""
    found: dict[str, list[tuple[float, float]]] = {}
    for name, machine, routing in (
        ("plain, routed by prefix", PLAIN, "prefix"),
        ("plain, routed at random", PLAIN, "random"),
        (f"drafts, α = {ALPHA}, by prefix", DRAFTS, "prefix"),
    ):
        for rate in (125, 500, 1000):
            workload = synthesize(replace(CHAT, rate=rate))
            needed = replicas_needed(Fleet(machine=machine, routing=routing), workload, PROMISE)
            found.setdefault(name, []).append((rate, needed.replicas))
            print(name, rate, needed.replicas, flush=True)
    return found


def affinity() -> tuple[dict[str, list[tuple[float, float]]], dict[str, list[tuple[float, float]]]]:
    """Share of prompt tokens found in a cache, and p99 to the first token, by policy and number of replicas."""
    hits: dict[str, list[tuple[float, float]]] = {}
    first: dict[str, list[tuple[float, float]]] = {}
    for policy in ("prefix", "session", "least_load", "round_robin", "random"):
        for replicas in (2, 4, 8, 16):
            workload = synthesize(replace(CHAT, rate=25 * replicas, num_prefixes=64, duration=24))
            found = run(PLAIN, workload, replicas, routing=policy)
            hits.setdefault(policy, []).append((replicas, 100 * found.prefix_hit_rate))
            first.setdefault(policy, []).append((replicas, 1e3 * found.ttft_p99))
        print(policy, hits[policy], first[policy], flush=True)
    return hits, first


def drafting() -> dict[str, list[tuple[float, float]]]:
    """How much faster a token comes with drafts than without, by requests a second of one machine."""
    found: dict[str, list[tuple[float, float]]] = {}
    kinds: dict[str, Any] = {"K = 2": 2, "K = 4": 4, "K = 8": 8, "auto": "auto"}
    for rate in (1, 4, 8, 16, 24, 32, 40):
        workload = synthesize(replace(SINGLE, rate=rate))
        plain = run(PLAIN, workload, 1)
        for name, k in kinds.items():
            draft = replace(DRAFTS.draft, spec_length=k) if DRAFTS.draft else None
            own = run(replace(DRAFTS, draft=draft), workload, 1)
            found.setdefault(name, []).append((rate, plain.tpot_p50 / own.tpot_p50))
        print(rate, {name: round(points[-1][1], 2) for name, points in found.items()}, flush=True)
    return found


def draft_machines() -> dict[str, list[tuple[float, float]]]:
    """Milliseconds a token, by the delay to machines that draft; seven replicas and one such, or eight that do both."""
    found: dict[str, list[tuple[float, float]]] = {}
    workload = synthesize(replace(SINGLE, rate=80, duration=20))
    own, plain = run(DRAFTS, workload, 8), run(PLAIN, workload, 8)
    for delay in (0.0, 0.001, 0.002, 0.005, 0.01):
        apart = run(DRAFTS, workload, 7, draft_machines=1, network_delay=delay)
        for name, value in (
            ("7 machines and 1 that drafts", apart),
            ("8 machines that draft themselves", own),
            ("8 machines, no drafts", plain),
        ):
            found.setdefault(name, []).append((1e3 * delay, 1e3 * value.tpot_p50))
        print(delay, {name: round(points[-1][1], 2) for name, points in found.items()}, flush=True)
    return found


def one_dies() -> tuple[dict[str, list[tuple[float, float]]], dict[str, list[tuple[float, float]]]]:
    """p99 of the latency and to the first token, by machines for 500 requests a second, one of which may die."""
    latency: dict[str, list[tuple[float, float]]] = {}
    first: dict[str, list[tuple[float, float]]] = {}
    workload = synthesize(replace(CHAT, rate=500))
    for name, options in (
        ("all live", {}),
        ("one dies after 3 s, and is back after 2 s", {"kills": [(3.0, 0)], "restart": 2.0}),
        ("one dies after 3 s, for good", {"kills": [(3.0, 0)], "restart": 600.0}),
    ):
        for count in (16, 17, 18, 19, 20, 22):
            found = run(PLAIN, workload, count, **options)
            latency.setdefault(name, []).append((count, found.latency_p99))
            first.setdefault(name, []).append((count, found.ttft_p99))
            print(name, count, found.latency_p99, found.ttft_p99, found.resumed, flush=True)
    return latency, first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    hits, first = affinity()
    lines(folder / "fleet_affinity.png", [
        ("What is found in the cache", "replicas (25 requests/s each)", "prompt tokens from the cache (%)", hits),
        ("The wait for a first token", "replicas (25 requests/s each)", "99% have it within (ms)", first),
    ])  # fmt: skip
    gain, apart = drafting(), draft_machines()
    lines(folder / "fleet_drafting.png", [
        ("When drafting stops paying", "requests/s of one machine", "times as fast a token as without", gain),
        ("Machines that only draft", "network delay, one way (ms)", "time per token, p50 (ms)", apart),
    ])  # fmt: skip
    needed = machines()
    lines(folder / "fleet_machines.png", [
        ("Machines (H100, 8B) with p99 of 4 s, first token 0.5 s", "requests/s", "machines", needed)
    ])  # fmt: skip
    late, waited = one_dies()
    lines(folder / "fleet_failure.png", [
        ("A machine dies: the whole answer", "machines (500 requests/s)", "99% have it within (s)", late),
        ("A machine dies: the first token", "machines (500 requests/s)", "99% have it within (s)", waited),
    ])  # fmt: skip
    result = {
        "one_dies": late,
        "one_dies_first_token": waited,
        "affinity": hits,
        "first_token": first,
        "drafting": gain,
        "draft_machines": apart,
        "machines": needed,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
