"""Who gets which request, and what replicas tell each other: prefix hits and accepted drafts, by policy.

    python -m benchmarks.fleet_policies -m MODEL --replicas 4 --conversations 60

All replicas run in this process, and conversations take turns in a random order, so that nothing but the policy
differs. ``hits``: prompt tokens found in a cache. ``accepted``: drafts accepted, of all that were made; ``per_run``:
tokens of a target run. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from typing import Any, get_args

from prometheus_client import CollectorRegistry

from benchmarks.fleet_clients import make_jobs
from outrider import LLM, SamplingParams
from outrider_fleet.ingress.fleet_engine import FleetEngine
from outrider_fleet.ingress.front import Front
from outrider_fleet.ingress.metrics import FleetMetrics
from outrider_fleet.ingress.pool import ReplicaPool
from outrider_fleet.ingress.routing import make_router
from outrider_fleet.replica.engine_host import EngineHost
from outrider_fleet.settings import PolicyName
from outrider_server.http.context import SESSION
from tests.fleet.local import LocalReplica

TURNS = 4


async def run(args: argparse.Namespace, policy: PolicyName, *, shares: bool) -> dict[str, Any]:
    """All conversations, ``--clients`` of them at a time."""
    options: dict[str, Any] = {"draft": "suffix", "threads": 1, "max_batch_size": args.places}
    hosts = [EngineHost(LLM(args.model, **options), f"r{i}", shares=shares) for i in range(args.replicas)]
    pool = ReplicaPool(make_router(policy, seed=1), shares=shares, period=0.1)
    for host in hosts:
        pool.add(LocalReplica(host, host.name))
    while len(pool.members) < len(hosts):
        await asyncio.sleep(0.01)
    engine = FleetEngine(Front(args.model, hosts[0].description()), pool, FleetMetrics(CollectorRegistry()))
    jobs = [job for job in make_jobs(args.conversations * TURNS * 5, TURNS, 1, 1) if job.kind == "completion_stream"]
    conversations = {job.conversation: [each for each in jobs if each.conversation == job.conversation] for job in jobs}
    waiting, chooser = list(conversations.values()), random.Random(1)
    totals = {"prompt": 0, "cached": 0, "tokens": 0, "runs": 0, "drafted": 0, "accepted": 0}

    async def client() -> None:
        while waiting:
            conversation = waiting[chooser.randrange(len(waiting))]
            job = conversation.pop(0)
            if not conversation:
                waiting.remove(conversation)
            SESSION.set(f"s{job.conversation}")
            params = SamplingParams(max_tokens=args.max_tokens, temperature=0, ignore_eos=True)
            output = await engine.generate(job.body["prompt"], params)
            stats = output.stats
            totals["prompt"] += stats.prompt_tokens
            totals["cached"] += stats.cached_prompt_tokens
            totals["tokens"] += stats.completion_tokens
            totals["runs"] += stats.target_runs
            totals["drafted"] += stats.num_draft_tokens
            totals["accepted"] += stats.num_accepted_draft_tokens

    await asyncio.gather(*(client() for _ in range(args.clients)))
    pool.close()
    for host in hosts:
        host.close()
    return {
        "policy": policy,
        "shares": shares,
        "hits": round(totals["cached"] / totals["prompt"], 3),
        "accepted": round(totals["accepted"] / max(1, totals["drafted"]), 3),
        "per_run": round(totals["tokens"] / totals["runs"], 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--places", type=int, default=8, help="of each replica")
    parser.add_argument("--conversations", type=int, default=48)
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--max-tokens", type=int, default=24)
    args = parser.parse_args()
    results = []
    for policy in reversed(get_args(PolicyName)):
        for shares in (False, True):
            results.append(asyncio.run(run(args, policy, shares=shares)))
            print(results[-1], flush=True)
    print(json.dumps({"fleet_policies": results}))


if __name__ == "__main__":
    main()
