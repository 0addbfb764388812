"""A simulated fleet beside a real one: the same requests at the same times to ``outrider serve --replicas``.

    python -m benchmarks.fleet_check run REAL.json --paced --rounds 3
    python -m benchmarks.fleet_check compare REAL.json ... --plot fleet_reality.png

``run`` starts fleets of 1, 2 and 4 replicas. In each round each of them is calibrated, serves requests that arrive at
random, and is calibrated again: a machine whose speed drifts is measured in the minute in which it served. Running
again adds rounds to the file. ``compare`` knows the calibrations and the arrivals, and none of the times of what was
served. It prints what the simulator gets wrong, with 95% intervals (bootstrap over rounds and sessions).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.fleet_fit import Segment, compare, fleet_of, show
from benchmarks.fleet_real import RealFleet
from benchmarks.paced_server import CURVE
from outrider_lab.fleet_planning.costs.machine import Machine
from outrider_lab.fleet_planning.workload import Lengths, Traffic, Workload, synthesize

TRAFFIC = Traffic(rate=1, turns=3, think_s=1, prefix_len=48, num_prefixes=8, max_context=220,
                  input_len=Lengths("uniform", 16, 64), output_len=Lengths("uniform", 8, 40))  # fmt: skip
SHARE = 0.6  # of what the replicas can do, that is asked of them


def measured_machine(model: str) -> dict[str, Any]:
    """A replica's costs, as ``outrider plan --fleet`` measures them."""
    from outrider import LLM
    from outrider_lab.fleet_planning.costs.measure import measure_machine

    with LLM(model, draft="none", threads=1, kv_cache="paged") as llm:
        return measure_machine(llm).as_dict()


def paced_machine() -> dict[str, Any]:
    """A replica whose forward passes take the time that they are given."""
    return Machine(CURVE, kv_tokens=1 << 20).as_dict()


def rate_of(segment: Segment) -> float:
    """Requests a second: about ``SHARE`` of what so many replicas can do."""
    fleet = fleet_of(segment)
    machine, speed = fleet.machine, fleet.speeds[-1] if fleet.speeds else 1.0
    work = machine.step_seconds(64, 1, 0, 63) + TRAFFIC.output_len.mean * machine.step_seconds(3, 3, 360) / 3
    return round(SHARE * fleet.replicas * speed / work, 2)


def workload(rate: float, seed: int, seconds: float) -> Workload:
    return replace(synthesize(replace(TRAFFIC, rate=rate, duration=seconds), seed=seed), grows=False)


async def run(args: argparse.Namespace) -> None:
    """Serve rounds, and keep each segment as soon as it has been served."""
    segments: list[Segment] = json.loads(args.files[0].read_text()) if args.files[0].exists() else []
    machine = paced_machine() if args.paced else measured_machine(args.model)
    cores = None if args.paced else os.cpu_count()
    async with AsyncExitStack() as stack:
        fleets = [
            await stack.enter_async_context(RealFleet(args.model, count, routing, paced=args.paced))
            for count in args.counts
            for routing in args.routing
        ]
        for _ in range(args.rounds):
            for fleet in fleets:
                segment = await serve(fleet, machine, cores, len(segments), args)
                segments.append(segment)
                args.files[0].write_text(json.dumps(segments) + "\n")


async def serve(fleet: RealFleet, machine: dict[str, Any], cores: int | None, seed: int, args: Any) -> Segment:
    """Requests of one seed between two calibrations."""
    segment: Segment = {"machine": machine, "cores": cores, "count": fleet.replicas, "routing": fleet.routing,
                        "seed": seed, "seconds": args.seconds, "before": await fleet.calibrate()}  # fmt: skip
    segment["rate"] = args.rate * fleet.replicas if args.rate else rate_of({**segment, "after": segment["before"]})
    asked = workload(segment["rate"], seed, args.seconds)
    print(f"{fleet.replicas} replicas, {fleet.routing}, {len(asked)} requests", file=sys.stderr, flush=True)
    kills = [(when, 0) for when in args.kill_at]
    segment |= {"kills": kills, "real": await fleet.serve(asked, kills)}
    if kills:  # a replica that is back has another name, so that sessions do not spread waves as before
        return {**segment, "after": segment["before"]}
    return {**segment, "after": await fleet.calibrate()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "compare"))
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--model", default="stories15m")
    parser.add_argument("--counts", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--routing", nargs="+", default=["session"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=12.0, help="of arrivals, for each fleet and round")
    parser.add_argument("--rate", type=float, help="requests a second of each replica; left out, 60%% of what it can")
    parser.add_argument("--kill-at", type=float, nargs="*", default=[], help="seconds at which a replica is killed")
    parser.add_argument("--paced", action="store_true", help="passes take a given time (benchmarks.paced_server)")
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()
    if args.what == "run":
        asyncio.run(run(args))
        return
    files: Sequence[Path] = args.files
    panels = {path.stem.replace("_", " "): compare(json.loads(path.read_text()), workload) for path in files}
    found = {name: show(name, rows) for name, rows in panels.items()}
    if args.plot is not None:
        from benchmarks.fleet_plots import reality

        reality(args.plot, panels)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
