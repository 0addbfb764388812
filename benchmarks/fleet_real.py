"""A real fleet for ``benchmarks.fleet_check``: requests at given times, and what one request costs meanwhile."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.fleet import Server
from benchmarks.fleet_events import noter
from outrider_fleet.ingress.routing import Ring
from outrider_lab.fleet_planning.workload import Segment, Workload

OPTIONS = ("--threads", "1", "--kv-cache", "paged", "--log-level", "info")
PROMPT, TOKENS, SHORT = 64, 20, 2
"""Of the requests that measure what one costs."""
MEASURED = ("token", "end", "ingress_cpu")
Wave = dict[str, Any]
"""Seconds of ``MEASURED``, and to each request's first token (``firsts``)."""
VOCABULARY = 1000  # token ids that prompts are made of
LONE = 6  # of those that are answered one after another
BESIDE = 4  # of each replica that are answered at once


@dataclass
class Times:
    """Seconds from a request's start."""

    tokens: list[float]
    done: float  # the end of the answer


class RealFleet:
    """``outrider serve --replicas`` and a client of it."""

    def __init__(self, model: str, replicas: int, routing: str, *, paced: bool) -> None:
        self.replicas, self.routing = replicas, routing
        args = argparse.Namespace(model=model, draft="none", extra=OPTIONS, least=replicas)
        flags = ("--replicas", str(replicas), "--fleet", "processes", "--routing", routing)
        program = ("benchmarks.paced_server",) if paced else ("outrider", "serve")
        self._server = Server(args, *flags, program=program)
        self._note, self._asked, self._rounds = noter(), 0, 0
        ring = Ring([f"r{i}" for i in range(replicas)])
        homes = {ring.home(f"/warm-{i}"): f"warm-{i}" for i in range(200)}
        self._sessions = [homes[f"r{i}"] for i in range(replicas)]  # one of each replica

    async def __aenter__(self) -> RealFleet:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._server)
            self._stack = stack.pop_all()
        await self.wave(self.replicas, 2)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def answer(self, prompt: Sequence[int], tokens: int, session: str) -> Times:
        """Ask for an answer of so many tokens, as a stream."""
        self._asked += 1
        name = f"{self.routing}-{self.replicas}-{os.getpid()}-{self._asked}"
        body = json.dumps({"model": "tiny", "prompt": list(prompt), "max_tokens": tokens, "ignore_eos": True,
                           "temperature": 0, "stream": True}).encode()  # fmt: skip
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: {name}\r\n"
        head += f"X-Session-Id: {session}\r\nContent-Type: application/json\r\n"
        head += f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        began = time.perf_counter()
        self._note("sent", name)
        reader, writer = await asyncio.open_connection(*self._server.address)
        writer.write(head.encode() + body)
        seen: list[float] = []
        async for line in reader:
            if line.startswith(b"HTTP/1.1") and b" 200 " not in line:
                raise RuntimeError((await reader.read()).decode())
            if line.startswith(b"data: [DONE]"):
                break
            if line.startswith(b"data: "):
                seen.append(time.perf_counter() - began)
                self._note("seen", name)
        done = time.perf_counter() - began
        self._note("done", name)
        writer.close()
        return Times(seen, done)

    async def wave(self, busy: int, requests: int, tokens: int = TOKENS) -> Wave:
        """So many equal requests to each of ``busy`` replicas at once: seconds.

        A token's time is that of the last half of the answer, when all prompts have been read.
        """
        fresh = np.random.default_rng()  # prompts that nobody has cached
        before = _cpu_seconds(self._server.process.pid)
        times = await asyncio.gather(
            *(
                self.answer(fresh.integers(3, VOCABULARY, PROMPT).tolist(), tokens, session)
                for session in self._sessions[:busy]
                for _ in range(requests)
            )
        )
        half = max(1, tokens // 2)
        return {
            "firsts": [each.tokens[0] for each in times],
            "token": statistics.mean((each.tokens[-1] - each.tokens[-1 - half]) / half for each in times),
            "end": statistics.median(each.done - each.tokens[-1] for each in times),
            "ingress_cpu": (_cpu_seconds(self._server.process.pid) - before) / len(times),
        }

    async def calibrate(self) -> dict[str, Wave]:
        """What requests cost now, by "busy replicas x requests of each"."""
        found: dict[str, Wave] = {}
        busy = sorted({1, 2, self.replicas}) if self.replicas > 1 else [1]
        for count in busy:
            waves = [await self.wave(count, 1) for _ in range(LONE if count == 1 else 1)]
            found[f"{count}x1"] = {name: statistics.median(wave[name] for wave in waves) for name in MEASURED}
            found[f"{count}x1"]["firsts"] = [first for wave in waves for first in wave["firsts"]]
            found[f"{count}x{BESIDE}"] = await self.wave(count, BESIDE)
        found["short"] = await self.wave(self.replicas, BESIDE, tokens=SHORT)
        return found

    async def serve(self, workload: Workload, kills: Sequence[tuple[float, int]] = ()) -> dict[str, Any]:
        """Send every request at its time, and not before the answer that it follows."""
        self._rounds += 1
        prompts = [token_ids(segments, self._rounds) for segments in workload.segments]
        ended = [asyncio.Event() for _ in prompts]
        before = await self._settled()
        began = time.perf_counter()

        async def one(i: int) -> dict[str, float]:
            await asyncio.sleep(max(0.0, workload.arrivals[i] - (time.perf_counter() - began)))
            if workload.follows[i] >= 0:
                await ended[workload.follows[i]].wait()
            sent = time.perf_counter() - began
            times = await self.answer(prompts[i], int(workload.outputs[i]), str(workload.sessions[i]))
            ended[i].set()
            return {"sent": sent, "first": times.tokens[0], "last": times.done}

        killing = asyncio.ensure_future(self._kill(kills, began))
        times = await asyncio.gather(*map(one, range(len(prompts))))
        killed = await killing
        after = await self._settled()
        return {"times": times, "killed": killed, **{name: after[name] - before[name] for name in before}}

    async def _settled(self) -> dict[str, float]:
        """Counts of all replicas, once they have reported."""
        await asyncio.sleep(1.1)
        metrics = await self._server.metrics()

        def total(name: str) -> float:
            return sum(value for key, value in metrics.items() if key.split("{")[0] == f"outrider:{name}")

        names = {"hits": "prefix_cache_hits_total", "asked": "prefix_cache_queries_total",
                 "resumed": "fleet_sequences_resumed_total"}  # fmt: skip
        return {short: total(name) for short, name in names.items()}

    async def _kill(self, kills: Sequence[tuple[float, int]], began: float) -> list[float]:
        """Kill replicas at their times; seconds until each was there again."""
        away = []
        for when, place in kills:
            await asyncio.sleep(max(0.0, when - (time.perf_counter() - began)))
            replicas = self._server.replicas()
            os.kill(replicas[place % len(replicas)], signal.SIGKILL)
            killed = time.perf_counter()
            while len(self._server.replicas()) < self.replicas or replicas[place % len(replicas)] in (
                self._server.replicas()
            ):
                await asyncio.sleep(0.05)
            away.append(time.perf_counter() - killed)
        return away


def _cpu_seconds(process: int) -> float:
    """That all threads of a process have run."""
    tasks = Path(f"/proc/{process}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def token_ids(segments: Sequence[Segment], number: int) -> list[int]:
    """A prompt whose equal segments have equal tokens in a round, and others in another: caches are to be cold."""
    found: list[int] = []
    for name, count in segments:
        seed = int.from_bytes(str(name).encode()[-12:], "big")
        found += np.random.default_rng([seed, number]).integers(3, VOCABULARY, 1024)[:count].tolist()
    return found
