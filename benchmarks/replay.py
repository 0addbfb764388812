"""Draft sources against recorded outputs, without running the model: thousands of steps a second.

Greedy outputs do not depend on drafts, so what a source would have won on them can be counted afterwards.

    python -m benchmarks.replay record RECORDING --questions QUESTIONS --count 48
    python -m benchmarks.replay run RECORDING lookup@10 suffix@15 prediction,suffix,unigram@15

For each source and category: α, τ, draft tokens a step, and ``gain``: tokens per target run's time, where a run of n
rows costs what ``COST`` says (``python -m benchmarks.rows`` measures it). Last, the time a proposal takes.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from time import perf_counter

import torch

from outrider.cache import CacheSpec
from outrider.config import SamplingParams, SpeculationParams
from outrider.drafters.api import Outcome
from outrider.drafters.context import DrafterContext
from outrider.drafters.registry import DrafterRegistry
from outrider.engine.draft_length.policy import DraftLength
from outrider.engine.drafting.rounds import Drafting
from outrider.engine.request import Request
from outrider.engine.stats import RequestStats
from outrider.verify.distribution import Context, TargetRows
from outrider.verify.draft import EMPTY, Draft, Verdict
from outrider.verify.tree import children
from outrider_lab.data import workloads

COST = ((1, 1.0), (4, 1.0), (8, 1.13), (16, 1.37), (32, 1.92), (64, 3.0))
"""Rows of a run, and its time over that of one row: SmolLM2-135M, bfloat16, context 64 (benchmarks/README.md)."""

NOTHING = TargetRows(torch.zeros(1, 1), SamplingParams(), Context((), ()), EMPTY)
"""What the target said: not recorded."""


@dataclass(frozen=True)
class Recording:
    """One plain greedy output."""

    category: str
    prompt: list[int]
    output: list[int]


@dataclass
class Tally:
    """What a source won."""

    stats: RequestStats = field(default_factory=RequestStats)
    cost: float = 0.0
    seconds: float = 0.0

    def add(self, other: Tally) -> None:
        self.stats.add(other.stats)
        self.cost += other.cost
        self.seconds += other.seconds

    def as_dict(self) -> dict[str, float]:
        stats = self.stats
        return {
            "alpha": round(stats.draft_acceptance_rate or 0.0, 3),
            "tau": round(stats.completion_tokens / stats.target_runs, 3),
            "drafted": round(stats.num_draft_tokens / stats.target_runs, 2),
            "gain": round(stats.completion_tokens / self.cost, 3),
            "us": round(1e6 * self.seconds / stats.target_runs, 1),
        }


def run_cost(rows: int) -> float:
    """Time of a run of so many rows over that of one, between the measured points by straight lines."""
    for (few, low), (many, high) in pairwise(COST):
        if rows <= many:
            return low + (high - low) * (rows - few) / (many - few)
    return COST[-1][1] * rows / COST[-1][0]


def walk(draft: Draft, output: Sequence[int], at: int) -> tuple[int, ...]:
    """The path that matching keeps of a draft, if ``output`` goes on at ``at``."""
    below, path = children(draft.parents), list[int]()
    while at < len(output):
        node = next((i for i in below[1 + path[-1] if path else 0] if draft.tokens[i] == output[at]), None)
        if node is None:
            break
        path.append(node)
        at += 1
    return tuple(path)


def replay(drafting: Drafting, recording: Recording, request: Request) -> Tally:
    """Teacher-force one recording through a request's draft source."""
    tally, output, at = Tally(request.stats), recording.output, 0
    drafting.start(request)
    while at < len(output):
        began = perf_counter()
        (draft,) = drafting.propose([request], [request.draft_limit], [1])
        path = walk(draft, output, at)
        committed = tuple(output[at : at + len(path) + 1])
        request.tokens += committed
        at = request.stats.completion_tokens = at + len(committed)
        drafting.observe(Outcome(request, draft, Verdict(path, committed[-1]), committed, NOTHING), request)
        tally.seconds += perf_counter() - began
        tally.cost += run_cost(1 + len(draft))
        request.stats.count(draft, path)
    drafting.finish(request)
    assert request.stats.draft_error is None, request.stats.draft_error
    return tally


def measure(source: str, recordings: Sequence[Recording], vocab_size: int, table: str | None) -> dict[str, Tally]:
    """By category, and together. Requests come one after another, so that sources may learn from earlier ones."""
    name, _, length = source.partition("@")
    k = int(length or 10)
    sources = DrafterRegistry(DrafterContext(vocab_size=vocab_size, cache=CacheSpec(max_seq_len=1), draft_table=table))
    drafting = Drafting(sources, vocab_size, DraftLength())
    tallies: defaultdict[str, Tally] = defaultdict(Tally)
    for i, recording in enumerate(recordings):
        speculation = SpeculationParams(draft=name, spec_length=k, tree_nodes=k)
        params = SamplingParams(seed=0, max_tokens=len(recording.output))
        request = Request(str(i), tuple(recording.prompt), params, speculation, frozenset())
        request.max_seq_len = 1 << 20
        tally = replay(drafting, recording, request)
        tallies[recording.category].add(tally)
        tallies["all"].add(tally)
    return dict(tallies)


def record(args: argparse.Namespace) -> None:
    from outrider import LLM

    llm = LLM(args.model, draft="none", max_batch_size=4, progress=True)
    questions = workloads.read(args.questions, count=args.count)
    outputs = llm.generate(workloads.token_ids(llm.tokenizer, questions), SamplingParams(max_tokens=args.max_tokens))
    with args.recording.open("w") as file:
        for question, output in zip(questions, outputs, strict=True):
            row = {"category": question.category, "prompt": output.prompt_token_ids, "output": output.token_ids}
            file.write(json.dumps(row) + "\n")


def read(path: Path) -> list[Recording]:
    rows = map(json.loads, path.read_text().splitlines())
    return [Recording(row["category"], row["prompt"], row["output"]) for row in rows]


def run(args: argparse.Namespace) -> None:
    recordings = read(args.recording)
    vocab_size = args.vocab_size or 1 + max(max(*r.prompt, *r.output) for r in recordings)
    results = {s: measure(s, recordings, vocab_size, args.draft_table) for s in args.sources}
    width = max(map(len, args.sources)) + 1
    for category in [*sorted({r.category for r in recordings}), "all"]:
        print(f"\n{category:{width}}" + "".join(f"{name:>9}" for name in next(iter(results.values()))["all"].as_dict()))
        for source, tallies in results.items():
            print(f"{source:{width}}" + "".join(f"{value:9}" for value in tallies[category].as_dict().values()))
    print(json.dumps({s: {c: t.as_dict() for c, t in tallies.items()} for s, tallies in results.items()}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    recorder = commands.add_parser("record", help="generate plain greedy outputs with a model")
    recorder.add_argument("recording", type=Path)
    recorder.add_argument("--questions", type=Path, required=True)
    recorder.add_argument("--count", type=int, default=48)
    recorder.add_argument("--model", default="smollm2-135m-instruct")
    recorder.add_argument("--max-tokens", type=int, default=128)
    recorder.set_defaults(do=record)
    runner = commands.add_parser("run", help="replay them through draft sources")
    runner.add_argument("recording", type=Path)
    runner.add_argument("sources", nargs="+", help="SOURCE@K, as in suffix@15 or suffix,ngram@8")
    runner.add_argument("--vocab-size", type=int, help="default: as many as the recording names")
    runner.add_argument("--draft-table")
    runner.set_defaults(do=run)
    args = parser.parse_args()
    args.do(args)


if __name__ == "__main__":
    main()
