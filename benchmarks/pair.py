"""A true pair: TinyLlama-1.1B drafted for by stories15M, as in the 2023 paper's experiments with small drafts.

    python -m benchmarks.pair

Reports acceptance rate α, mean acceptance length τ and speed over plain decoding, interleaved: greedy and at
temperature 1, matching verification beside rejection, for several draft lengths K.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from outrider import LLM, SamplingParams, SpeculationParams

STORIES = [
    "Once upon a time, there was a little girl named Lily. She loved to play in the garden. One day, she",
    "Tom and his dog went to the park. They saw a big red ball. Tom said",
    "The little bird was sad because it could not fly. Its mother told it",
    "One day, a boy named Ben found a shiny key under his bed. He wanted to know what it",
    "There was a kind old man who lived in a small house near the sea. Every morning he",
    "Mia had a toy bear. She took the bear everywhere. One rainy day, the bear",
]
MODES = {"greedy": SamplingParams(), "temperature 1": SamplingParams(temperature=1.0, seed=11)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tinyllama-1.1b-chat")
    parser.add_argument("--draft-model", default="stories15m")
    parser.add_argument("--spec-lengths", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    llm = LLM(args.model, draft_model=args.draft_model, max_batch_size=1, prefix_reuse=False, progress=True)
    llm.generate(STORIES[0], SamplingParams(max_tokens=8))

    settings = {"plain": SpeculationParams()}
    for k in args.spec_lengths:
        for verifier in ("matching", "rejection"):
            settings[f"K={k} {verifier}"] = SpeculationParams(draft="model", spec_length=k, verifier=verifier)
    rows: dict[str, Any] = {}
    for mode, base in MODES.items():
        params = replace(base, max_tokens=args.max_tokens)
        seconds: dict[str, list[float]] = {name: [0.0] * args.rounds for name in settings}
        outputs: dict[str, list[Any]] = {name: [] for name in settings}
        for turn in range(args.rounds):
            for story in STORIES:
                for name, speculation in settings.items():
                    began = time.perf_counter()
                    output = llm.generate(story, params, speculation=speculation)
                    seconds[name][turn] += time.perf_counter() - began
                    if turn == 0:
                        outputs[name].append(output)
        print(mode)
        for name, made in outputs.items():
            tokens = sum(len(o.token_ids) for o in made)
            drafted = sum(o.stats.num_draft_tokens for o in made)
            rates = [tokens / s for s in seconds[name]]
            plain = sum(len(o.token_ids) for o in outputs["plain"])
            row = {
                "alpha": round(sum(o.stats.num_accepted_draft_tokens for o in made) / drafted, 3) if drafted else None,
                "tau": round(tokens / sum(o.stats.target_runs for o in made), 2),
                "tokens_per_s": round(statistics.median(rates), 1),
                "speedup": round(
                    statistics.median(r * s / plain for r, s in zip(rates, seconds["plain"], strict=True)), 2
                ),
                "identical": sum(a.token_ids == b.token_ids for a, b in zip(made, outputs["plain"], strict=True)),
            }
            rows[f"{mode}, {name}"] = row
            print(f"  {name:16} {row}", flush=True)
    result = {
        "date": datetime.date.today().isoformat(),
        "model": args.model,
        "draft_model": args.draft_model,
        "prompts": len(STORIES),
        "rounds": args.rounds,
        "results": rows,
    }
    print(json.dumps(result))
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
