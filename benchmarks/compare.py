"""Outrider beside its peers on the same prompts, interleaved in one run, each in a process of its own.

    python -m benchmarks.compare --questions question.jsonl --categories summarization translation --count 16

Greedy, prefill included. Contenders take turns prompt by prompt and the order changes from round to round, so that
a busy moment of the machine hits all of them. Reported: tokens per second over everything (median over rounds), the
median of the per-prompt ratios to the first contender, and how many outputs equal the first contender's.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import questions
from outrider.models.catalog import resolve
from outrider.models.tokenizer import Tokenizer

DEFAULT = ["outrider:none", "transformers", "outrider:lookup:10", "outrider:ngram:10", "transformers:lookup:10"]


class Worker:
    """A contender's process."""

    def __init__(self, name: str, folder: Path, dtype: str, threads: int, python: str, draft: str = "") -> None:
        self.name = name
        command = [python, "-m", "benchmarks.worker", name, str(folder), "--dtype", dtype, "--threads", str(threads)]
        command += ["--draft-model", draft] if draft else []
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.started = self._read()

    def ask(self, prompts: list[list[int]], max_tokens: int) -> dict[str, Any]:
        """Hand over prompts at once and wait for all of them."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"prompts": prompts, "max_tokens": max_tokens}) + "\n")
        self._process.stdin.flush()
        return self._read()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended early; its message is above")
        answer: dict[str, Any] = json.loads(line)
        return answer


@dataclass
class Record:
    """One contender's results: seconds[round][question], tokens[question]."""

    seconds: list[list[float]] = field(default_factory=list)
    tokens: list[list[int]] = field(default_factory=list)
    peak_mb: float = 0.0


def measure(workers: list[Worker], prompts: list[list[int]], max_tokens: int, rounds: int) -> dict[str, Record]:
    records = {worker.name: Record() for worker in workers}
    for worker in workers:
        worker.ask([prompts[0]], 8)  # warm up
    for turn in range(rounds):
        for record in records.values():
            record.seconds.append([])
        for number, prompt in enumerate(prompts):
            shift = (turn + number) % len(workers)
            for worker in workers[shift:] + workers[:shift]:
                answer = worker.ask([prompt], max_tokens)
                record = records[worker.name]
                record.seconds[turn].append(answer["s"])
                record.peak_mb = answer["peak_mb"]
                tokens = answer["tokens"][0]
                if turn == 0:
                    record.tokens.append(tokens)
                elif record.tokens[number] != tokens:
                    print(f"\n{worker.name}: output changed between rounds on prompt {number}", file=sys.stderr)
            print(
                f"\rround {turn + 1}/{rounds}, prompt {number + 1}/{len(prompts)}", end="", file=sys.stderr, flush=True
            )
    print(file=sys.stderr)
    return records


def summarise(record: Record, base: Record, chosen: list[int]) -> dict[str, float]:
    """Rates over the questions ``chosen``; ``base`` is the first contender's record."""
    count = sum(len(record.tokens[i]) for i in chosen)
    rates = [count / sum(turn[i] for i in chosen) for turn in record.seconds]
    per_token = [
        (statistics.median(t[i] for t in base.seconds) / len(base.tokens[i]))
        / (statistics.median(t[i] for t in record.seconds) / len(record.tokens[i]))
        for i in chosen
    ]
    same = sum(record.tokens[i] == base.tokens[i] for i in chosen)
    return {
        "tokens_per_s": round(statistics.median(rates), 1),
        "ratio": round(statistics.median(per_token), 2),
        "identical": same,
        "prompts": len(chosen),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("contenders", nargs="*", default=DEFAULT)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--questions", type=Path, help="Spec-Bench JSONL; a built-in mix if left out")
    parser.add_argument("--categories", nargs="+")
    parser.add_argument("--count", type=int, default=6)
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--python", default=sys.executable, help="an interpreter with the peers installed")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()

    folder = resolve(args.model, progress=True)
    tokenizer = Tokenizer.from_folder(folder)
    categories = set(args.categories) if args.categories else None
    if args.questions:
        picked = questions.read(args.questions, count=args.count, categories=categories)
    else:
        picked = list(questions.BUILT_IN[: args.count])
    prompts = [tokenizer.encode_chat([{"role": "user", "content": q.text}]) for q in picked]
    workers = [Worker(name, folder, args.dtype, args.threads, args.python) for name in args.contenders]
    records = measure(workers, prompts, args.max_tokens, args.rounds)
    for worker in workers:
        worker.close()

    by_category: dict[str, list[int]] = defaultdict(list)
    for i, question in enumerate(picked):
        by_category[question.category].append(i)
    base = records[workers[0].name]
    result: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "model": args.model,
        "dtype": args.dtype,
        "threads": args.threads,
        "max_tokens": args.max_tokens,
        "rounds": args.rounds,
        "versions": {w.name: w.started["version"] for w in workers},
        "peak_mb": {w.name: round(records[w.name].peak_mb) for w in workers},
        "results": {
            w.name: {
                "all": summarise(records[w.name], base, list(range(len(picked)))),
                **{c: summarise(records[w.name], base, chosen) for c, chosen in sorted(by_category.items())},
            }
            for w in workers
        },
    }
    print(f"tokens/s, median of {args.rounds} rounds (median ratio to {workers[0].name} per prompt; identical outputs)")
    for name, parts in result["results"].items():
        cells = [f"{c} {r['tokens_per_s']} (x{r['ratio']}; {r['identical']}/{r['prompts']})" for c, r in parts.items()]
        print(f"{name:26} {result['peak_mb'][name]:5} MB  " + "  ".join(cells))
    print(json.dumps(result))
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
