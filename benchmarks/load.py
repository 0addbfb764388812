"""Two hundred clients at once, many of them rude: nothing is lost, and all accounts agree in the end.

    python -m benchmarks.load --model smollm2-135m-instruct --clients 200 --seconds 300

Starts ``outrider serve`` itself. Clients ask for whole answers and streams, leave in the middle, read slowly, send
nonsense. Afterwards the server must be idle, its cache empty, its memory as it was after warming up, and its counters
must agree with what the clients saw. Ends with one JSON line; exit code 1 if anything is amiss.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

MIX = {"whole": 30, "stream": 30, "leave": 15, "slow": 5, "bad": 15, "chat": 5}
"""Kinds of requests and how often each comes."""

BAD: list[dict[str, Any]] = [
    {"prompt": ""},
    {"prompt": "x", "n": 10**9},
    {"prompt": [10**9]},
    {"prompt": "x", "temperature": -1},
    {"prompt": "x", "nonsense": True},
    {"prompt": "x " * 9999},
]


@dataclass
class Seen:
    """What all clients saw."""

    statuses: Counter[int] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    finished: int = 0  # sequences seen to their end
    tokens: int = 0  # of those
    drafted: int = 0
    broken: list[str] = field(default_factory=list)  # answers that should not have been


class Server:
    """``outrider serve`` in a process of its own."""

    def __init__(self, model: str, *options: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [sys.executable, "-m", "outrider.cli.main", "serve", "-m", model, "--port", str(port), *options]
        self.process = subprocess.Popen([*command, "--log-level", "error"])
        self.url = f"http://127.0.0.1:{port}"

    def ready(self, seconds: float = 300) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.process.poll() is None:
            try:
                if httpx.get(f"{self.url}/health").status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.1)
        raise SystemExit("the server did not come up")

    def memory_mb(self) -> float:
        """Resident memory."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    def metrics(self) -> dict[str, float]:
        """Every sample, summed over its labels."""
        sums: Counter[str] = Counter()
        for family in text_string_to_metric_families(httpx.get(f"{self.url}/metrics").text):
            for sample in family.samples:
                sums[sample.name] += sample.value  # type: ignore[assignment]
        return dict(sums)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


async def client(http: httpx.AsyncClient, until: float, seed: int, seen: Seen) -> None:
    """One client, request after request."""
    rng = random.Random(seed)
    while time.monotonic() < until:
        kind = rng.choices(list(MIX), list(MIX.values()))[0]
        try:
            status = await _request(http, kind, rng, seen)
        except httpx.TransportError as error:
            seen.broken.append(f"{kind}: {type(error).__name__}")
            continue
        seen.kinds[kind] += 1
        seen.statuses[status] += 1
        if status == 429:
            await asyncio.sleep(rng.uniform(0.1, 1.0))


async def _request(http: httpx.AsyncClient, kind: str, rng: random.Random, seen: Seen) -> int:
    if kind == "bad":
        answer = await http.post("/v1/completions", json=rng.choice(BAD))
        if not 400 <= answer.status_code < 500:
            seen.broken.append(f"nonsense was answered with {answer.status_code}")
        return answer.status_code
    body: dict[str, Any] = {
        "max_tokens": rng.randint(1, 60),
        "seed": rng.randrange(1000),
        "n": rng.choice((1, 1, 1, 2)),
    }
    body["speculation"] = rng.choice(["off", {"draft": "ngram"}, {"draft": "lookup", "spec_length": 4}])
    path = "/v1/chat/completions" if kind == "chat" else "/v1/completions"
    text = " ".join(rng.choice(("hello", "world", "the", "12", "of")) for _ in range(rng.randint(1, 40)))
    body |= {"messages": [{"role": "user", "content": text}]} if kind == "chat" else {"prompt": text}
    if kind in ("whole", "chat"):
        answer = await http.post(path, json=body)
        if answer.status_code == 200:
            _account(answer.json(), body["n"], seen)
        return answer.status_code
    return await _stream(http, kind, body, rng, seen)


async def _stream(http: httpx.AsyncClient, kind: str, body: dict[str, Any], rng: random.Random, seen: Seen) -> int:
    stay = rng.randint(0, 8) if kind == "leave" else 1 << 30
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    last = ""
    async with http.stream("POST", "/v1/completions", json=body) as answer:
        if answer.status_code != 200:
            await answer.aread()
            return answer.status_code
        async for line in answer.aiter_lines():
            stay -= 1
            if stay < 0:
                return 200
            if kind == "slow":
                await asyncio.sleep(rng.uniform(0, 0.1))
            if line.startswith("data: {"):
                last = line[6:]
            elif line == "data: [DONE]":
                _account(json.loads(last), body["n"], seen)
                return 200
    seen.broken.append(f"{kind}: a stream broke off")
    return 200


def _account(answer: dict[str, Any], n: int, seen: Seen) -> None:
    if "error" in answer:
        seen.broken.append(answer["error"]["message"])
        return
    seen.finished += n
    seen.tokens += answer["usage"]["completion_tokens"]
    seen.drafted += answer["metrics"]["speculative_decoding"]["num_draft_tokens"]


async def crowd(url: str, clients: int, seconds: float, seed: int = 0) -> Seen:
    seen, until = Seen(), time.monotonic() + seconds
    limits = httpx.Limits(max_connections=clients, max_keepalive_connections=clients)
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as http:
        await asyncio.gather(*(client(http, until, seed * 10_000 + i, seen) for i in range(clients)))
    return seen


def reconcile(seen: Seen, before: dict[str, float], after: dict[str, float]) -> list[str]:
    """What does not agree."""

    def grown(name: str) -> float:
        return after.get(f"outrider:{name}", 0) - before.get(f"outrider:{name}", 0)

    amiss = list(dict.fromkeys(seen.broken))
    checks = {
        "sequences still run": after["outrider:num_requests_running"] == 0,
        "sequences still wait": after["outrider:num_requests_waiting"] == 0,
        "the cache is not empty": after["outrider:kv_cache_usage_perc"] < 1e-9,
        "clients saw more sequences end than the server": seen.finished <= grown("request_success_total"),
        "clients saw more tokens than were made": seen.tokens <= grown("generation_tokens_total"),
        "clients saw more drafts than were made": seen.drafted <= grown("spec_decode_num_draft_tokens_total"),
        "a server error": not any(status >= 500 for status in seen.statuses),
    }
    return amiss + [words for words, fine in checks.items() if not fine]


def run(model: str, clients: int, seconds: float, *options: str, growth_mb: float = 60) -> dict[str, Any]:
    """Warm up, then let the crowd in, then compare accounts; memory may grow by ``growth_mb`` after warming up."""
    server = Server(model, *options)
    try:
        server.ready()
        asyncio.run(crowd(server.url, clients, min(20.0, seconds / 3), seed=1))
        before, memory = _settled(server), server.memory_mb()
        seen = asyncio.run(crowd(server.url, clients, seconds, seed=2))
        after, grown = _settled(server), server.memory_mb() - memory
        amiss = reconcile(seen, before, after)
    finally:
        code = server.stop()
    amiss += [f"exit code {code}"] if code else []
    amiss += [f"memory grew by {grown:.0f} MB"] if grown > growth_mb else []
    made = after["outrider:generation_tokens_total"] - before["outrider:generation_tokens_total"]
    return {
        "clients": clients,
        "seconds": seconds,
        "requests": seen.kinds.total(),
        "by_kind": dict(seen.kinds),
        "by_status": {str(status): count for status, count in sorted(seen.statuses.items())},
        "sequences_finished": seen.finished,
        "tokens_made": int(made),
        "memory_mb": round(memory),
        "memory_growth_mb": round(grown, 1),
        "amiss": amiss,
    }


def _settled(server: Server, seconds: float = 60) -> dict[str, float]:
    """The metrics once nothing runs any more."""
    end = time.monotonic() + seconds
    while True:
        found = server.metrics()
        busy = found["outrider:num_requests_running"] or found["outrider:num_requests_waiting"]
        if not busy or time.monotonic() > end:
            return found
        time.sleep(0.2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=300)
    given = parser.parse_args()
    result = run(given.model, given.clients, given.seconds, "--draft", "ngram", "--max-queue", "64")
    for key, value in result.items():
        print(f"{key:20} {value}")
    print(json.dumps(result))
    sys.exit(bool(result["amiss"]))


if __name__ == "__main__":
    main()
