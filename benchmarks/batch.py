"""Several requests at once: throughput and latency of Outrider and its peers, interleaved in one run.

    python -m benchmarks.batch --questions question.jsonl --concurrency 1 4 8 16

Each round gives every backend the same N prompts at once and waits for all of them. Backends are of
``outrider_lab.bench.worker``; peers that take one request at a time get them one after another. Reported, as medians
over rounds: tokens per second over the whole batch, the ratio to the first backend, the 50th and 90th percentile of the
requests' own latencies, and how many outputs equal the first backend's.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import sys
from pathlib import Path
from typing import Any

from outrider.tokenizer.tokenizer import Tokenizer
from outrider.weights.hub.catalog import resolve
from outrider_lab.bench.process import PeerProcess
from outrider_lab.data import workloads

DEFAULT = ["outrider:none", "outrider-paged:none", "outrider:lookup:6", "outrider-paged:lookup:6", "transformers"]


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def summarise(runs: list[dict[str, Any]], base: list[dict[str, Any]]) -> dict[str, Any]:
    """One backend at one concurrency; ``base`` are the first backend's runs of the same prompts."""
    rates = [sum(map(len, run["tokens"])) / run["s"] for run in runs]
    base_rates = [sum(map(len, run["tokens"])) / run["s"] for run in base]
    latencies = [latency for run in runs for latency in run["latencies"]]
    same = sum(
        a == b
        for run, first in zip(runs, base, strict=True)
        for a, b in zip(run["tokens"], first["tokens"], strict=True)
    )
    return {
        "tokens_per_s": round(statistics.median(rates), 1),
        "ratio": round(statistics.median(a / b for a, b in zip(rates, base_rates, strict=True)), 2),
        "latency_p50_s": round(percentile(latencies, 0.5), 2),
        "latency_p90_s": round(percentile(latencies, 0.9), 2),
        "identical": same,
        "requests": sum(len(run["tokens"]) for run in runs),
        "overhead_share": runs[-1].get("overhead_share"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("backends", nargs="*", default=DEFAULT)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--draft-model")
    parser.add_argument("--questions", default="mix", help="Spec-Bench JSONL; a built-in mix if left out")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--max-chars", type=int, default=1500, help="leave longer questions out")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", default="auto", help="of Outrider; peers of folders of their own have their own")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--python", default=sys.executable, help="an interpreter with the peers installed")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()

    folder = resolve(args.model, progress=True)
    tokenizer = Tokenizer.from_folder(folder)
    most = max(args.concurrency)
    questions = workloads.load(args.questions, count=most * args.rounds, max_chars=args.max_chars)
    prompts = workloads.token_ids(tokenizer, questions)
    draft = str(resolve(args.draft_model, progress=True)) if args.draft_model else ""
    workers = []
    for name in args.backends:
        python = sys.executable if name.startswith("outrider") else args.python
        workers.append(PeerProcess(name, folder, args.dtype, args.threads, python, draft))
    for worker in workers:
        worker.generate([prompts[0]], 8)
    result: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "model": args.model,
        "max_tokens": args.max_tokens,
        "versions": {w.name: w.started["version"] for w in workers},
        "results": {},
    }
    for n in args.concurrency:
        runs: dict[str, list[dict[str, Any]]] = {worker.name: [] for worker in workers}
        for turn in range(args.rounds):
            batch = prompts[turn * n : turn * n + n]
            for worker in workers[turn % len(workers) :] + workers[: turn % len(workers)]:
                runs[worker.name].append(worker.generate(batch, args.max_tokens))
        result["results"][n] = {name: summarise(own, runs[workers[0].name]) for name, own in runs.items()}
        print(f"{n} at once")
        for name, r in result["results"][n].items():
            print(
                f"  {name:26} {r['tokens_per_s']:7.1f} tokens/s  x{r['ratio']:<5} "
                f"latency p50 {r['latency_p50_s']:.2f} s p90 {r['latency_p90_s']:.2f} s  "
                f"identical {r['identical']}/{r['requests']}"
                + (f"  overhead {r['overhead_share']:.1%}" if r["overhead_share"] is not None else ""),
                flush=True,
            )
    for worker in workers:
        worker.close()
    print(json.dumps(result))
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
