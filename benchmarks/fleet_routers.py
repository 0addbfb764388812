"""Servers of ours behind another router: chats and completions in sessions, one server killed half-way.

    python -m benchmarks.fleet_routers -m MODEL --router vllm-router --policies cache_aware consistent_hash

For each policy two servers and the router are started anew. What a client of one server would be told is worked out
first, and each conversation is held once. The last line is JSON: by policy the share of prompt tokens found in a cache
until the kill, answers that were broken off or refused, those that differ, and times before the kill and after it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.fleet import Server
from benchmarks.fleet_clients import Answer, Client, Job, expected, make_jobs

KINDS = ("chat", "chat_stream", "completion", "completion_stream")
START_SECONDS = 60.0  # that a router may take until it answers
LINES = 15  # of a router's log that an error shows


@dataclass
class Tally:
    """What the clients of one policy saw."""

    answers: list[Answer] = field(default_factory=list)
    before: int = 0  # answers until the kill
    killed: float = 0.0  # when that was, by time.perf_counter
    last_failure: float = 0.0  # likewise
    different: int = 0
    errors: list[str] = field(default_factory=list)


class Router:
    """A router in a process of its own, once it answers ``GET /health``."""

    def __init__(self, command: list[str], policy: str, servers: list[Server]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free, socket.create_server(("127.0.0.1", 0)) as other:
            self.address = ("127.0.0.1", free.getsockname()[1])
            metrics = other.getsockname()[1]
        urls = [f"http://{host}:{port}" for host, port in (server.address for server in servers)]
        self._command = [*command, "--host", "127.0.0.1", "--port", str(self.address[1]), "--policy", policy]
        self._command += ["--prometheus-port", str(metrics), "--worker-urls", *urls]

    async def __aenter__(self) -> Router:
        with tempfile.NamedTemporaryFile("w", prefix="router-", suffix=".log", delete=False) as log:
            self.log = Path(log.name)
            self._process = await asyncio.create_subprocess_exec(*self._command, stdout=log, stderr=log)
        began = time.perf_counter()
        while True:
            self.check()
            try:
                async with asyncio.timeout(5):
                    await Client(self.address).get("/health")
                return self
            except (OSError, EOFError, ValueError, IndexError):  # TimeoutError is an OSError
                if time.perf_counter() - began > START_SECONDS:
                    await self.__aexit__()
                    raise self._error(f"did not answer GET /health for {START_SECONDS:.0f} s") from None
                await asyncio.sleep(0.1)

    async def __aexit__(self, *_: object) -> None:
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    def check(self) -> None:
        """Raises SystemExit with the end of its log if it has ended."""
        if self._process.returncode is not None:
            raise self._error(f"ended with exit code {self._process.returncode}")

    def _error(self, what: str) -> SystemExit:
        lines = self.log.read_text(errors="replace").splitlines()[-LINES:]
        return SystemExit("\n  ".join([f"{' '.join(self._command)}\n{what}. The end of {self.log}:", *lines]))


async def run(args: argparse.Namespace, jobs: list[Job], policy: str) -> dict[str, Any]:
    """All conversations with one policy."""
    tally, conversations = Tally(), iter(_by_conversation(jobs))
    async with AsyncExitStack() as stack:
        both = [Server(args, "--metrics-prefix", "vllm", "--kv-cache", "paged", "--threads", "1") for _ in range(2)]
        _tell(f"{policy}: starting two servers")
        servers = await asyncio.gather(*(stack.enter_async_context(server) for server in both))
        _tell(f"{policy}: starting {args.router[0]}")
        router = await stack.enter_async_context(Router(args.router, policy, servers))
        began = time.perf_counter()
        clients = [_client(args, router, conversations, tally) for _ in range(args.clients)]
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(_watch(router, tally, len(jobs), policy))
            killing = group.create_task(_kill_half_way(servers, tally, len(jobs)))
            await asyncio.gather(*clients)
            watching.cancel()
        found = killing.result()
        seconds = time.perf_counter() - began
    return {"policy": policy, "seconds": round(seconds, 1)} | _report(tally, found)


def _by_conversation(jobs: list[Job]) -> list[list[Job]]:
    turns: dict[int, list[Job]] = {}
    for job in jobs:
        turns.setdefault(job.conversation, []).append(job)
    return list(turns.values())


async def _client(args: argparse.Namespace, router: Router, conversations: Iterator[list[Job]], tally: Tally) -> None:
    """Conversations, turn after turn, until all have been held; what fails is not asked again."""
    own = Client(router.address, args.session_header)
    for conversation in conversations:
        for job in conversation:
            answer = await own.ask(job, session=f"s{job.conversation}")
            tally.answers.append(answer)
            if answer.error:
                tally.errors.append(answer.error[:200])
                tally.last_failure = time.perf_counter()
            elif answer.text != job.expected:
                tally.different += 1
                tally.errors.append(f"{job.kind} {job.number}: {answer.text[:60]!r} is not {job.expected[:60]!r}")


async def _watch(router: Router, tally: Tally, requests: int, policy: str) -> None:
    """Say how far it has got, and stop with the router's log if that has ended."""
    shown = 0
    while True:
        await asyncio.sleep(0.5)
        router.check()
        if len(tally.answers) - shown >= requests // 10:
            shown = len(tally.answers)
            _tell(f"{policy}: {shown} of {requests} requests, {len(tally.errors)} not as expected")


async def _kill_half_way(servers: list[Server], tally: Tally, requests: int) -> list[tuple[float, float]]:
    """Kill the first server (SIGKILL) when half of the requests have been answered; what both had found by then."""
    while len(tally.answers) < requests // 2:
        await asyncio.sleep(0.02)
    found = [await _hits(server) for server in servers]
    servers[0].process.kill()
    tally.killed = time.perf_counter()
    tally.before = len(tally.answers)
    return found


async def _hits(server: Server) -> tuple[float, float]:
    """Prompt tokens that were found in its cache, and all."""
    metrics = await server.metrics()

    def total(name: str) -> float:
        return sum(value for key, value in metrics.items() if key.split("{")[0] == f"vllm:{name}")

    return total("prefix_cache_hits_total"), total("prefix_cache_queries_total")


def _report(tally: Tally, found: list[tuple[float, float]]) -> dict[str, Any]:
    asked = sum(prompts for _, prompts in found)
    refused = [answer for answer in tally.answers if answer.error and answer.status != 200]
    return {
        "requests": len(tally.answers),
        "prefix_hits": round(sum(hits for hits, _ in found) / asked, 4),
        "share_of_the_first": round(found[0][1] / asked, 3),
        "different": tally.different,
        "failed_before_the_kill": sum(bool(answer.error) for answer in tally.answers[: tally.before]),
        "broken_off": sum(bool(answer.error) for answer in tally.answers) - len(refused),
        "refused": len(refused),
        "failing_for_s": round(max(0.0, tally.last_failure - tally.killed), 1),
        **{f"before_{name}": value for name, value in _times(tally.answers[: tally.before]).items()},
        **{f"after_{name}": value for name, value in _times(tally.answers[tally.before :]).items()},
        "first_errors": tally.errors[:3],
    }


def _times(answers: list[Answer]) -> dict[str, float]:
    """Milliseconds to the first byte of an answer's body and to its end, of what was answered."""
    good = [answer for answer in answers if not answer.error]
    if len(good) < 2:
        return {}
    cuts = {
        name: statistics.quantiles([getattr(each, name) for each in good], n=100) for name in ("first_s", "whole_s")
    }
    ranks = ((50, "p50"), (99, "p99"))
    return {f"{name[:-2]}_{said}_ms": round(1000 * cuts[name][rank - 1], 1) for name in cuts for rank, said in ranks}


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--router", nargs="+", default=["vllm-router"], help="its command, one word or more")
    parser.add_argument("--policies", nargs="+", default=["cache_aware", "consistent_hash", "round_robin"])
    parser.add_argument("--session-header", default="X-Session-Id", help="in which clients name their sessions")
    parser.add_argument("--draft", default="suffix")
    parser.add_argument("--requests", type=int, default=800)
    parser.add_argument("--turns", type=int, default=5, help="of a conversation")
    parser.add_argument("--max-tokens", type=int, default=16)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--extra", nargs=argparse.REMAINDER, default=[], help="more options of serve")
    args = parser.parse_args()
    args.least = 0
    jobs = make_jobs(args.requests, args.turns, args.max_tokens, args.seed, kinds=KINDS)
    _tell(f"working out {len(jobs)} answers with one engine")
    expected(args.model, jobs)
    results = []
    for policy in args.policies:
        results.append(asyncio.run(run(args, jobs, policy)))
        print(" ".join(f"{key}={value}" for key, value in results[-1].items()), flush=True)
    print(json.dumps({"routers": results}))
    sys.exit(any(result["different"] or result["failed_before_the_kill"] for result in results))


if __name__ == "__main__":
    main()
