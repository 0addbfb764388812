"""Replicas under load: many clients with sessions, replicas killed meanwhile, and every answer compared.

    python -m benchmarks.fleet -m MODEL --replicas 2 --requests 2000 --clients 100 --kill-every 5

Each client goes through conversations: turns of one session, which share a system prompt with others. Every request has
a seed and is one of ``--distinct``; what a single engine answers to each is worked out first. The last line is JSON:
requests that were lost, answers that differ, times to the first token and to the last, shares of prompt tokens found
in a cache, and whether the counts of clients and server agree.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.fleet_clients import Answer, Client, Job, expected, make_jobs


@dataclass
class Tally:
    """What the clients saw."""

    answers: list[Answer] = field(default_factory=list)
    lost: int = 0
    different: int = 0
    refused: int = 0  # with 429 or 503, and asked again
    kills: int = 0
    errors: list[str] = field(default_factory=list)


class Server:
    """``outrider serve`` in a process of its own."""

    def __init__(self, args: argparse.Namespace, *flags: str, program: Sequence[str] = ("outrider", "serve")) -> None:
        """``program``: the module to run, and its arguments."""
        self._args, self._flags, self._program = args, flags, program

    async def __aenter__(self) -> Server:
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log", delete=False)  # noqa: SIM115  read after the end
        command = [
            sys.executable,
            "-m",
            *self._program,
            "-m",
            self._args.model,
            "--port",
            "0",
            *self._flags,
            "--served-model-name",
            "tiny",
        ]
        command += ["--max-queue", "4096", "--draft", self._args.draft, *self._args.extra]
        began = time.perf_counter()
        self.process = await asyncio.create_subprocess_exec(*command, stderr=self.log)
        while "ready:" not in (text := Path(self.log.name).read_text()):
            assert self.process.returncode is None, text
            await asyncio.sleep(0.05)
        self.start_s = time.perf_counter() - began
        at = text.index("listening on ") + len("listening on ")
        host, _, port = text[at:].split()[0].rpartition("/")[2].rpartition(":")
        self.address = host, int(port)
        while Path(self.log.name).read_text().count(": ready after") < self._args.least:
            await asyncio.sleep(0.05)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(self.process.wait(), 60)

    def replicas(self) -> list[int]:
        """The processes of replicas that are ready."""
        alive = {int(entry) for entry in os.listdir("/proc") if entry.isdigit()}
        lines = [line for line in Path(self.log.name).read_text().splitlines() if ": ready after" in line]
        return [pid for line in lines if (pid := int(line.split("process ")[1].split(",")[0])) in alive]

    async def metrics(self) -> dict[str, float]:
        text = await Client(self.address).get("/metrics")
        lines = [line for line in text.splitlines() if line and not line.startswith("#")]
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


async def run(args: argparse.Namespace, jobs: list[Job], policy: str) -> dict[str, Any]:
    """One run of all requests with one policy."""
    flags = ["--replicas", args.replicas, "--fleet", args.fleet, "--routing", policy]
    flags += ["--no-share-drafts"] if args.no_share else []
    tally, began = Tally(), time.perf_counter()
    async with Server(args, *(flags if args.replicas != "0" else [])) as server:
        clients_began = time.perf_counter()
        killing = asyncio.ensure_future(kill(server, args, tally))
        turns = iter(range(args.requests))
        await asyncio.gather(*(client(server, number, args, jobs, turns, tally) for number in range(args.clients)))
        seconds = time.perf_counter() - clients_began
        killing.cancel()
        await asyncio.sleep(1.5)  # for the last reports of the replicas
        metrics = await server.metrics()
    del began
    return report(args, policy, server, tally, metrics, seconds)


async def client(
    server: Server, number: int, args: argparse.Namespace, jobs: list[Job], turns: Any, tally: Tally
) -> None:
    """Conversations, turn after turn, until the requests are used up."""
    own, chooser = Client(server.address), random.Random(f"{args.seed}/{number}")
    conversation: list[Job] = []
    for _ in turns:
        if not conversation:
            name = chooser.choice(jobs).conversation
            conversation = [job for job in jobs if job.conversation == name]
        job = conversation.pop(0)
        for attempt in range(20):
            answer = await own.ask(job, session=f"{number}-{job.conversation}")
            if answer.status not in (429, 503):
                break
            tally.refused += 1
            await asyncio.sleep(0.2 * (1 + attempt))
        tally.answers.append(answer)
        if answer.error:
            tally.lost += 1
            tally.errors.append(answer.error[:200])
        elif answer.text != job.expected:
            tally.different += 1
            tally.errors.append(f"{job.kind} {job.number}: {answer.text[:60]!r} is not {job.expected[:60]!r}")


async def kill(server: Server, args: argparse.Namespace, tally: Tally) -> None:
    """Kill a replica now and then, and have all of them replaced half-way if that is asked for."""
    chooser, number = random.Random(args.seed), 0
    while args.kill_every:
        await asyncio.sleep(args.kill_every)
        number += 1
        if args.roll and number == 3:
            server.process.send_signal(signal.SIGHUP)
        elif pids := server.replicas():
            os.kill(chooser.choice(pids), signal.SIGKILL)
            tally.kills += 1


def report(
    args: argparse.Namespace, policy: str, server: Server, tally: Tally, metrics: dict[str, float], seconds: float
) -> dict[str, Any]:
    first = sorted(answer.first_s for answer in tally.answers if not answer.error)
    whole = sorted(answer.whole_s for answer in tally.answers if not answer.error)

    def total(name: str) -> float:
        return sum(value for key, value in metrics.items() if key.split("{")[0] == f"outrider:{name}")

    tokens = sum(answer.tokens for answer in tally.answers)
    drafted = total("spec_decode_num_draft_tokens_total")
    result = {
        "policy": policy,
        "replicas": args.replicas,
        "requests": len(tally.answers),
        "lost": tally.lost,
        "different": tally.different,
        "asked_again": tally.refused,
        "kills": tally.kills,
        "resumed": total("fleet_sequences_resumed_total"),
        "replicas_lost": total("fleet_replicas_lost_total"),
        "start_s": round(server.start_s, 2),
        "seconds": round(seconds, 1),
        "requests_per_s": round(len(tally.answers) / seconds, 1),
        "tokens_per_s": round(tokens / seconds),
        "first_p50_ms": _ms(first, 0.5),
        "first_p99_ms": _ms(first, 0.99),
        "whole_p50_ms": _ms(whole, 0.5),
        "whole_p99_ms": _ms(whole, 0.99),
        "prefix_hits": round(total("prefix_cache_hits_total") / max(1, total("prefix_cache_queries_total")), 4),
        "accepted": round(total("spec_decode_num_accepted_tokens_total") / max(1, drafted), 4),
        "tokens_per_run": round(tokens / max(1, tokens - total("spec_decode_num_accepted_tokens_total")), 3),
        "shared": total("fleet_responses_shared_total"),
        "client_tokens": tokens,
        "server_tokens": total("fleet_tokens_total"),
    }
    result["reconciled"] = args.replicas == "0" or result["client_tokens"] == result["server_tokens"]
    for error in dict.fromkeys(tally.errors[:5]):
        print("  ", error)
    return result


def _ms(values: list[float], share: float) -> float:
    if len(values) < 2:
        return 0.0
    return round(1000 * statistics.quantiles(values, n=1000)[max(0, min(998, round(1000 * share) - 1))], 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--replicas", default="2", help="as for serve; 0: a single engine in the server's process")
    parser.add_argument("--fleet", default="processes", choices=["processes", "ray"])
    parser.add_argument("--routing", nargs="+", default=["prefix"])
    parser.add_argument("--no-share", action="store_true", help="replicas learn nothing from each other")
    parser.add_argument("--draft", default="suffix")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--distinct", type=int, default=200)
    parser.add_argument("--turns", type=int, default=4, help="of a conversation")
    parser.add_argument("--max-tokens", type=int, default=24)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--kill-every", type=float, default=0.0, help="seconds; 0: never")
    parser.add_argument("--roll", action="store_true", help="replace all replicas once meanwhile (SIGHUP)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--extra", nargs=argparse.REMAINDER, default=[], help="more options of serve")
    args = parser.parse_args()
    args.least = int(args.replicas.partition(":")[0])
    jobs = make_jobs(args.distinct, args.turns, args.max_tokens, args.seed)
    expected(args.model, jobs)
    results = []
    for policy in args.routing:
        results.append(asyncio.run(run(args, jobs, policy)))
        shown = {key: value for key, value in results[-1].items() if key not in ("client_tokens", "server_tokens")}
        print(" ".join(f"{key}={value}" for key, value in shown.items()))
    print(json.dumps({"fleet": results}))
    wrong = any(result["lost"] or result["different"] or not result["reconciled"] for result in results)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
