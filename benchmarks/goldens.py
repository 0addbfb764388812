"""From seeds to tokens: what a change of the code must leave as it was.

    python -m benchmarks.goldens --write FILE      # before
    python -m benchmarks.goldens --compare FILE    # after

For each draft source at a fixed draft length and each set of sampling options, the tokens of a few prompts and how
many draft tokens were accepted at each position. Exits with 1 if anything differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from outrider import LLM, SamplingParams, SpeculationParams

PROMPTS = (
    "Copy this word for word: the soup was wonderful, the fish was wonderful, and the lemon cake was the best.",
    "Write a Python function that returns the sum of the squares of a list of numbers.",
    "List the days of the week, then list them again backwards.",
)
SOURCES = (
    "none",
    "lookup:6",
    "ngram:4",
    "suffix:6",
    "recycling:6",
    "lookahead:4",
    "suffix+recycling:6",
    "layer_skip:3",
)
OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "t0.7": {"temperature": 0.7, "seed": 1},
    "t1,k40,p0.9": {"temperature": 1.0, "top_k": 40, "top_p": 0.9, "seed": 2},
    "t0.8,penalties": {
        "temperature": 0.8,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.3,
        "min_p": 0.02,
        "seed": 3,
    },
    "logprobs": {"temperature": 0.7, "seed": 4, "logprobs": 3},
}
VERIFIERS = ("rejection", "sequoia", "specinfer", "block", "traversal", "univer", "typical")


def cases() -> Iterator[tuple[str, str, dict[str, Any], dict[str, Any]]]:
    """Name, source, sampling options and speculation options of each case."""
    for source in SOURCES:
        for name, options in OPTIONS.items():
            yield f"{source} {name}", source, options, {}
    for verifier in VERIFIERS:
        yield f"ngram:4 {verifier}", "ngram:4", OPTIONS["t0.7"], {"verifier": verifier}
    for tree in ("3,2,1", "dynamic"):
        yield f"ngram:6 tree {tree}", "ngram:6", OPTIONS["t0.7"], {"tree": tree}


def run(llm: LLM, tokens: int) -> dict[str, Any]:
    """Tokens and accepted counts by case and prompt."""
    found: dict[str, Any] = {}
    for name, source, options, speculation in cases():
        draft, _, length = source.partition(":")
        fixed: dict[str, Any] = {"spec_length": int(length)} if length else {}
        given = SpeculationParams(draft=draft, **fixed, **speculation)
        for i, prompt in enumerate(PROMPTS):
            try:
                params = SamplingParams(max_tokens=tokens, **options)
                out = llm.chat([{"role": "user", "content": prompt}], params, speculation=given)
            except Exception as error:  # noqa: BLE001 (a refusal is an outcome to keep, too)
                found[f"{name} {i}"] = f"{type(error).__name__}: {error}"
                continue
            logprobs = hashlib.sha256(repr([step.logprobs for step in out.steps]).encode()).hexdigest()[:16]
            found[f"{name} {i}"] = [out.token_ids, [list(each) for each in out.stats.rounds], logprobs]
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, help="file to write")
    parser.add_argument("--compare", type=Path, help="file to compare with")
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--tokens", type=int, default=24)
    args = parser.parse_args(argv)
    with LLM(args.model, dtype=args.dtype, max_seq_len=1024) as llm:
        found = run(llm, args.tokens)
    if args.write:
        args.write.write_text(json.dumps(found, indent=0))
        print(f"{len(found)} cases written to {args.write}")
    if args.compare:
        before = json.loads(args.compare.read_text())
        different = [name for name in sorted(before.keys() | found.keys()) if before.get(name) != found.get(name)]
        for name in different[:20]:
            print(f"{name}\n  before {before.get(name)}\n  after  {found.get(name)}")
        print(f"{len(before)} cases, {len(different)} different")
        return 1 if different else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
