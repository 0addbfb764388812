"""What happens to each request of a real fleet, and when: where the time between two forward passes goes.

    EVENTS=events.txt python -m benchmarks.paced_server ...      notes
    python -m benchmarks.fleet_events events.txt                 prints the time between each two events

All processes of a machine have one clock (``time.perf_counter`` is CLOCK_MONOTONIC on Linux).
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

ORDER = ("sent", "asked", "picked", "given", "made", "added", "began", "stepped", "told", "relayed", "seen")
"""Of a request's first token: by the client, ingress, replica's loop, its engine, and back."""


def noter() -> Callable[[str, str], None]:
    """A function that notes an event of a request; it does nothing where nobody asked for it."""
    path = os.environ.get("EVENTS")
    if path is None:
        return lambda event, request: None
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(event: str, request: str) -> None:
        os.write(file, f"{time.perf_counter():.6f} {event} {request}\n".encode())

    return note


def note_ingress() -> None:
    """Note when this process, an ingress, has a request, sends it on, and relays its tokens."""
    from outrider_fleet.ingress import fleet_engine
    from outrider_server.http.context import REQUEST_ID

    note, engine = noter(), fleet_engine.FleetEngine
    bursts, run_on, put = engine.bursts, engine._run_on, fleet_engine._Events.put

    async def noted_bursts(self: Any, *args: Any, **kwargs: Any) -> AsyncGenerator[Any]:
        note("asked", REQUEST_ID.get())
        async for each in bursts(self, *args, **kwargs):
            yield each

    async def noted_run_on(self: Any, *args: Any) -> None:
        note("picked", REQUEST_ID.get())
        await run_on(self, *args)

    def noted_put(self: Any, index: int, event: Any) -> None:
        note("relayed" if isinstance(event, list) else "ended", REQUEST_ID.get())
        put(self, index, event)

    engine.bursts, engine._run_on = noted_bursts, noted_run_on  # type: ignore[assignment, method-assign]
    fleet_engine._Events.put = noted_put  # type: ignore[method-assign]


def note_replica() -> None:
    """Note when this process, a replica, has a request, steps, and tells what came of it."""
    from outrider.engine.engine import Engine
    from outrider_fleet.replica import engine_host as imported
    from outrider_server.http.context import REQUEST_ID

    engine_host: Any = imported  # what a module imports is its own business, but not here
    note, host = noter(), engine_host.EngineHost
    make, burst, add, step = engine_host.make_requests, host._burst, Engine.add, Engine.step
    names: dict[str, str] = {}

    def noted_make(*args: Any) -> Any:
        note("given", REQUEST_ID.get())
        made = make(*args)
        names[made[0].id] = REQUEST_ID.get()
        note("made", REQUEST_ID.get())
        return made

    def noted_add(self: Any, request: Any) -> None:
        note("added", names.get(request.id, ""))
        add(self, request)

    def noted_step(self: Any) -> Any:
        note("began", f"step-{os.getpid()}")
        outputs = step(self)
        stats = self.stats
        note("stepped", f"step-{os.getpid()} {stats.running} {len(outputs)}")
        for output in outputs:
            note("stepped", names.get(output.request_id, ""))
        return outputs

    def noted_burst(self: Any, index: int, request: Any, *args: Any) -> Any:
        note("told", names.get(request.id, ""))
        return burst(self, index, request, *args)

    engine_host.make_requests, host._burst = noted_make, noted_burst
    Engine.add, Engine.step = noted_add, noted_step  # type: ignore[method-assign]


def read(path: Path) -> dict[str, list[tuple[float, str]]]:
    """Events by request, in order of time."""
    found: defaultdict[str, list[tuple[float, str]]] = defaultdict(list)
    for line in path.read_text().splitlines():
        when, event, *names = line.split(" ")
        found[names[0] if names else ""].append((float(when), event))
    return {name: sorted(events) for name, events in found.items()}


def main() -> None:
    found = read(Path(sys.argv[1]))
    first: defaultdict[str, list[float]] = defaultdict(list)
    later: defaultdict[str, list[float]] = defaultdict(list)
    for name, events in found.items():
        if name.startswith("step-") or not name:
            continue
        at: dict[str, list[float]] = defaultdict(list)
        for when, event in events:
            at[event].append(when)
        known = [event for event in ORDER if event in at]
        for before, after in pairwise(known):
            first[f"{before} → {after}"].append(at[after][0] - at[before][0])
        chain = [event for event in ("stepped", "told", "relayed", "seen") if event in at]
        for before, after in pairwise(chain):
            for a, b in zip(at[before], at[after], strict=False):
                later[f"{before} → {after}"].append(b - a)
        if "seen" in at and "ended" in at:
            later["last seen → ended"].append(at["ended"][-1] - at["seen"][-1])
        if "seen" in at and "done" in at:
            later["last seen → done"].append(at["done"][-1] - at["seen"][-1])
    for title, table in (("to the first token", first), ("each token", later)):
        print(title)
        for name, values in table.items():
            ranked = sorted(values)
            tail = ranked[min(len(ranked) - 1, int(0.99 * len(ranked)))]
            print(f"  {name:22} p50 {1e3 * statistics.median(values):8.2f} ms  p99 {1e3 * tail:8.2f} ms  {len(values)}")


if __name__ == "__main__":
    main()
