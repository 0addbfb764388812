"""Servers of ours behind another router: streamed chats in sessions, one server stopped half-way, answers compared.

    python -m benchmarks.fleet_routers -m MODEL --router vllm-router --policies cache_aware consistent_hash

For each policy two servers and the router are started anew. What a client of one server would be told is worked out
first. The last line is JSON: answers that are broken off or refused, those that differ, and the share of prompt tokens
found in a cache, by policy, until the stop and after it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import socket
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from benchmarks.fleet import Server
from benchmarks.fleet_clients import Client, Job, expected, make_jobs


@dataclass
class Tally:
    asked: int = 0
    lost: list[str] = field(default_factory=list)
    refused: int = 0  # with 4xx or 5xx, before anything was said
    different: int = 0
    failed: list[int] = field(default_factory=list)


class Router:
    """A router in a process of its own, once it answers ``GET /health``."""

    def __init__(self, command: str, policy: str, servers: list[tuple[str, int]]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free, socket.create_server(("127.0.0.1", 0)) as other:
            self.address = ("127.0.0.1", free.getsockname()[1])
            metrics = other.getsockname()[1]
        urls = [f"http://{host}:{port}" for host, port in servers]
        self._command = [command, "--host", "127.0.0.1", "--port", str(self.address[1]), "--policy", policy]
        self._command += ["--prometheus-port", str(metrics), "--log-level", "warn", "--worker-urls", *urls]

    async def __aenter__(self) -> Router:
        quiet = asyncio.subprocess.DEVNULL
        self._process = await asyncio.create_subprocess_exec(*self._command, stdout=quiet, stderr=quiet)
        for _ in range(1800):
            try:
                await Client(self.address).get("/health")
            except (OSError, EOFError, ValueError):
                await asyncio.sleep(0.1)
            else:
                return self
        raise TimeoutError(f"{self._command[0]} does not answer")

    async def __aexit__(self, *_: object) -> None:
        self._process.kill()
        await self._process.wait()


async def run(args: argparse.Namespace, jobs: list[Job], policy: str) -> dict[str, Any]:
    tally, chooser = Tally(), random.Random(args.seed)
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(Server(args, "--metrics-prefix", "vllm")) for _ in range(2)]
        router = await stack.enter_async_context(Router(args.router, policy, [each.address for each in servers]))
        turns = iter(range(args.requests))
        stopping = asyncio.ensure_future(stop_half_way(servers, tally, args.requests))
        seeds = [chooser.random() for _ in range(args.clients)]
        await asyncio.gather(*(client(router, number, seed, jobs, turns, tally) for number, seed in enumerate(seeds)))
        hits_before, prompts = await stopping
        await asyncio.sleep(0.5)
        hits_after = await hits(servers[1])
    return {
        "policy": policy,
        "requests": tally.asked,
        "broken_off": len(tally.lost),
        "refused": tally.refused,
        "different": tally.different,
        "failed_after_the_stop": len([number for number in tally.failed if number >= args.requests // 2]),
        "prefix_hits": round(sum(hit for hit, _ in hits_before) / sum(asked for _, asked in hits_before), 4),
        "prompts_by_server": prompts,
        "prefix_hits_of_the_other_at_the_end": round(hits_after[0] / hits_after[1], 4),
        "first_errors": tally.lost[:2],
    }


async def client(router: Router, number: int, seed: float, jobs: list[Job], turns: Any, tally: Tally) -> None:
    """Conversations, turn after turn, until the requests are used up; what fails is not asked again."""
    own, chooser, conversation = Client(router.address), random.Random(seed), list[Job]()
    for turn in turns:
        if not conversation:
            name = chooser.choice(jobs).conversation
            conversation = [job for job in jobs if job.conversation == name]
        job = conversation.pop(0)
        answer = await own.ask(job, session=f"{number}-{job.conversation}")
        tally.asked += 1
        if answer.error:
            tally.refused += answer.status != 200
            if answer.status == 200:
                tally.lost.append(answer.error[:200])
            tally.failed.append(turn)
        else:
            tally.different += answer.text != job.expected


async def stop_half_way(
    servers: list[Server], tally: Tally, requests: int
) -> tuple[list[tuple[float, float]], list[float]]:
    """Stop the first server (SIGKILL) when half of the requests have been answered; what both had found by then."""
    while tally.asked < requests // 2:
        await asyncio.sleep(0.05)
    found = [await hits(server) for server in servers]
    servers[0].process.kill()
    return found, [asked for _, asked in found]


async def hits(server: Server) -> tuple[float, float]:
    """Prompt tokens that were found in its cache, and all."""
    metrics = await server.metrics()

    def total(name: str) -> float:
        return sum(value for key, value in metrics.items() if key.split("{")[0] == f"vllm:{name}")

    return total("prefix_cache_hits_total"), total("prefix_cache_queries_total")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--router", default="vllm-router", help="its command")
    parser.add_argument("--policies", nargs="+", default=["cache_aware", "consistent_hash", "round_robin"])
    parser.add_argument("--draft", default="suffix")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--distinct", type=int, default=200)
    parser.add_argument("--turns", type=int, default=4, help="of a conversation")
    parser.add_argument("--max-tokens", type=int, default=16)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--extra", nargs=argparse.REMAINDER, default=[], help="more options of serve")
    args = parser.parse_args()
    args.least = 0
    jobs = make_jobs(args.distinct, args.turns, args.max_tokens, args.seed, kinds=("chat_stream",))
    expected(args.model, jobs)
    results = []
    for policy in args.policies:
        results.append(asyncio.run(run(args, jobs, policy)))
        print(" ".join(f"{key}={value}" for key, value in results[-1].items()), flush=True)
    print(json.dumps({"routers": results}))


if __name__ == "__main__":
    main()
