"""A simulated fleet beside a real one: 1, 2 and 4 servers on this machine, the same requests at the same times.

    python -m benchmarks.fleet_check calibrate CALIBRATION.json
    python -m benchmarks.fleet_check serve CALIBRATION.json REAL.json
    python -m benchmarks.fleet_check compare CALIBRATION.json REAL.json ... --plot fleet_reality.png

``calibrate`` measures a replica of one thread as ``outrider plan --fleet`` does, and then servers that answer one
request at a time: alone, and beside others on the same cores. ``serve`` sends requests that arrive at random.
``compare`` knows the calibration and the arrivals, nothing of ``REAL.json``'s times, and prints what it gets wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.paced_server import CURVE
from outrider.analysis.fleet.machine import Machine, from_dict
from outrider.analysis.fleet.report import Summary, summarize
from outrider.analysis.fleet.routing import router
from outrider.analysis.fleet.run import Fleet, Run
from outrider.analysis.fleet.simulate import simulate
from outrider.analysis.fleet.workload import Lengths, Segment, Traffic, Workload, synthesize

PORT = 18540
COUNTS = (1, 2, 4)
OPTIONS = ("--threads", "1", "--draft", "none", "--kv-cache", "paged")
TRAFFIC = Traffic(rate=1, turns=2, think_s=1, prefix_len=32, num_prefixes=4, max_context=200,
                  input_len=Lengths("uniform", 16, 64), output_len=Lengths("uniform", 8, 40))  # fmt: skip
ALONE_PROMPT, ALONE_TOKENS = 64, 100
REQUESTS = (1, 4)
ROUNDS = 5
ROUTING = {1: "round_robin", 2: "session", 4: "round_robin"}
WARM_UP = 0.1  # of the time in which requests come
SHARE = 0.6  # of what the servers can do, that is asked of them


@dataclass
class Server:
    """One replica, with what a router asks of it."""

    number: int
    model: str
    load: int = 0

    async def answer(self, prompt: Sequence[int], tokens: int) -> tuple[float, float]:
        """Seconds to the first and to the last token."""
        body = json.dumps({"model": self.model, "prompt": list(prompt), "max_tokens": tokens, "ignore_eos": True,
                           "temperature": 0, "stream": True}).encode()  # fmt: skip
        head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        head += f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        self.load += 1
        began = time.perf_counter()
        reader, writer = await asyncio.open_connection("127.0.0.1", PORT + self.number)
        writer.write(head.encode() + body)
        first = 0.0
        async for line in reader:
            if line.startswith(b"HTTP/1.1") and b" 200 " not in line:
                raise RuntimeError((await reader.read()).decode())
            if line.startswith(b"data: [DONE]"):
                break
            first = first or (time.perf_counter() - began if line.startswith(b"data: ") else 0.0)
        writer.close()
        self.load -= 1
        return first, time.perf_counter() - began


def token_ids(segments: Sequence[Segment]) -> list[int]:
    """A prompt whose equal segments have equal tokens."""
    found: list[int] = []
    for name, count in segments:
        seed = int.from_bytes(str(name).encode()[-12:], "big")
        found += np.random.default_rng(seed).integers(1000, 30_000, 1024)[:count].tolist()
    return found


async def send(workload: Workload, servers: Sequence[Server], routing: str) -> list[dict[str, float]]:
    """Send every request at its time, and not before the answer that it follows."""
    policy = router(routing, workload, np.random.default_rng(0))
    prompts = [token_ids(segments) for segments in workload.segments]
    ended = [asyncio.Event() for _ in prompts]
    began = time.perf_counter()

    async def one(i: int) -> dict[str, float]:
        await asyncio.sleep(max(0.0, workload.arrivals[i] - (time.perf_counter() - began)))
        if workload.follows[i] >= 0:
            await ended[workload.follows[i]].wait()
        sent = time.perf_counter() - began
        server: Any = policy.choose(i, servers)  # type: ignore[arg-type]
        first, last = await server.answer(prompts[i], int(workload.outputs[i]))
        ended[i].set()
        return {"sent": sent, "first": first, "last": last}

    return await asyncio.gather(*map(one, range(len(prompts))))


@contextmanager
def serving(model: str, count: int, *, paced: bool) -> Iterator[list[Server]]:
    """Servers that have loaded the model, and have answered once."""
    command = ["benchmarks.paced_server"] if paced else ["outrider", "serve"]
    command = [sys.executable, "-m", *command, "-m", model, *OPTIONS, "--log-level", "error", "--port"]
    started = [subprocess.Popen([*command, str(PORT + i)]) for i in range(count)]
    try:
        for i in range(count):
            _wait(f"http://127.0.0.1:{PORT + i}/health")
        servers = [Server(i, model) for i in range(count)]
        for server in servers:
            asyncio.run(server.answer(range(1000, 1100), 8))
        yield servers
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait()


def _wait(url: str) -> None:
    for _ in range(600):
        try:
            if urllib.request.urlopen(url, timeout=5).status == 200:
                return
        except OSError:
            time.sleep(0.1)
    raise TimeoutError(f"{url} does not answer")


def measured_machine(model: str) -> dict[str, Any]:
    """A replica's costs, as ``outrider plan --fleet`` measures them."""
    from outrider import LLM
    from outrider.analysis.fleet.measure import measure_machine

    return measure_machine(LLM(model, draft="none", threads=1, kv_cache="paged")).as_dict()


def paced_machine() -> dict[str, Any]:
    """A replica whose forward passes take the time that they are given."""
    return Machine(CURVE, kv_tokens=2048).as_dict()


async def wave(servers: Sequence[Server], requests: int) -> dict[str, float]:
    """So many equal requests to each server at once: median seconds to the first token, and of each further one."""
    fresh = np.random.default_rng()  # prompts that nobody has cached
    times = await asyncio.gather(
        *(
            server.answer(fresh.integers(1000, 30_000, ALONE_PROMPT).tolist(), ALONE_TOKENS)
            for server in servers
            for _ in range(requests)
        )
    )
    return {
        "first": statistics.median(first for first, _ in times),
        "token": statistics.median((last - first) / (ALONE_TOKENS - 1) for first, last in times),
    }


def calibrate(servers: Sequence[Server]) -> dict[str, dict[str, float]]:
    """What servers need for a request, by "servers x requests of each". Others slow a wave: the fastest counts."""
    found: dict[str, dict[str, float]] = {}
    for _ in range(ROUNDS):
        for count in COUNTS:
            for requests in REQUESTS:
                one, name = asyncio.run(wave(servers[:count], requests)), f"{count}x{requests}"
                best = found.setdefault(name, one)
                found[name] = {key: min(value, best[key]) for key, value in one.items()}
    return found


def calibrated(found: dict[str, Any]) -> tuple[Machine, list[float]]:
    """The machine with what a server adds, and the speed of each replica by the number that are busy."""
    machine, waves = from_dict(found["machine"]), found["waves"]
    context = ALONE_PROMPT + ALONE_TOKENS / 2
    rest = [waves[f"1x{n}"]["token"] - machine.step_seconds(n, n, n * context) for n in REQUESTS]
    per_sequence, overhead = np.polyfit(REQUESTS, rest, 1)
    machine = replace(
        machine,
        overhead=max(0.0, machine.overhead + float(overhead)),
        per_sequence=max(0.0, machine.per_sequence + float(per_sequence)),
    )
    reading = machine.step_seconds(ALONE_PROMPT, 1, 0, ALONE_PROMPT - 1)
    machine = replace(machine, request_seconds=max(0.0, waves["1x1"]["first"] - reading))
    slower = [
        statistics.mean(waves[f"1x{n}"]["token"] / waves[f"{count}x{n}"]["token"] for n in REQUESTS) for count in COUNTS
    ]
    return machine, [float(np.interp(n, COUNTS, slower)) for n in range(1, max(COUNTS) + 1)]


def rates(found: dict[str, Any]) -> dict[int, float]:
    """Requests a second for each number of servers: about ``SHARE`` of what they can do."""
    machine, speeds = calibrated(found)
    work = machine.step_seconds(64, 1, 0, 63) + TRAFFIC.output_len.mean * machine.step_seconds(3, 3, 360) / 3
    return {count: round(SHARE * count * speeds[count - 1] / work, 2) for count in COUNTS}


def workload(rate: float, count: int, seconds: float) -> Workload:
    return replace(synthesize(replace(TRAFFIC, rate=rate, duration=seconds), seed=count), grows=False)


def serve(servers: Sequence[Server], found: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Times of real requests, by number of servers."""
    real: dict[str, Any] = {}
    for count, rate in rates(found).items():
        asked = workload(rate, count, seconds)
        print(f"{count} servers, {len(asked)} requests", file=sys.stderr, flush=True)
        times = asyncio.run(send(asked, servers[:count], ROUTING[count]))
        real[str(count)] = {"rate": rate, "seconds": seconds, "times": times}
    return real


def real_run(simulated: Run, times: list[dict[str, float]]) -> Run:
    """What really happened, in the form of a simulated run."""
    arrived = np.array([each["sent"] for each in times])
    first, last = (np.array([each[name] for each in times]) for name in ("first", "last"))
    return replace(simulated, arrived=arrived, first=arrived + first, finished=arrived + last)


def compare(found: dict[str, Any], real: dict[str, Any]) -> list[tuple[int, Summary, Summary]]:
    """For each number of servers: what was simulated and what happened."""
    machine, speeds = calibrated(found)
    rows = []
    for count in COUNTS:
        happened = real[str(count)]
        asked = workload(happened["rate"], count, happened["seconds"])
        fleet = Fleet(machine=machine, replicas=count, routing=ROUTING[count], cores=found["cores"], speeds=speeds)
        run = simulate(fleet, asked)
        rows.append((count, summarize(run, WARM_UP), summarize(real_run(run, happened["times"]), WARM_UP)))
    return rows


NAMES = {
    "request_throughput": "requests/s", "output_throughput": "tokens/s", "latency_p50": "latency p50 (s)",
    "latency_p99": "latency p99 (s)", "ttft_p50": "first token p50 (s)", "ttft_p99": "first token p99 (s)",
}  # fmt: skip


def show(rows: list[tuple[int, Summary, Summary]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for count, simulated, real in rows:
        print(f"{count} servers, {real.requests} requests, simulated replicas busy {simulated.utilization:.0%}")
        for name, title in NAMES.items():
            a, b = getattr(simulated, name), getattr(real, name)
            print(f"  {title:22} simulated {a:9.3f}  real {b:9.3f}  {a / b - 1:+6.0%}")
            result.setdefault(str(count), {})[name] = {"simulated": a, "real": b, "error": round(a / b - 1, 4)}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("calibrate", "serve", "compare"))
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--model", default="stories15m")
    parser.add_argument(
        "--seconds", type=float, default=25.0, help="in which requests come, for each number of servers"
    )
    parser.add_argument("--paced", action="store_true", help="passes take a given time (benchmarks.paced_server)")
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()
    if args.what == "calibrate":
        facts: dict[str, Any] = {"machine": paced_machine() if args.paced else measured_machine(args.model)}
        facts["cores"] = None if args.paced else os.cpu_count()
        with serving(args.model, max(COUNTS), paced=args.paced) as servers:
            facts["waves"] = calibrate(servers)
        args.files[0].write_text(json.dumps(facts, indent=1) + "\n")
        return
    found = json.loads(args.files[0].read_text())
    if args.what == "serve":
        with serving(args.model, max(COUNTS), paced=args.paced) as servers:
            args.files[1].write_text(json.dumps(serve(servers, found, args.seconds)) + "\n")
        return
    panels: dict[str, dict[int, tuple[Summary, Summary]]] = {}
    results = []
    for known, happened in zip(args.files[::2], args.files[1::2], strict=True):
        rows = compare(json.loads(known.read_text()), json.loads(happened.read_text()))
        panels[known.stem] = {count: (simulated, real) for count, simulated, real in rows}
        results.append(show(rows))
    if args.plot is not None:
        from outrider.analysis.fleet.plots import reality

        reality(args.plot, panels)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
