"""Is the output with drafts token for token the output without? Greedy, and sampled with the same seed.

    python -m benchmarks.identity --questions question.jsonl --count 100 --max-tokens 128
    python -m benchmarks.identity --model tinyllama-1.1b-chat --draft-model stories15m --sources model ...

A difference is reported with its position and how far apart the target's two best logits were there.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

from outrider import LLM, SamplingParams, SpeculationParams
from outrider_lab.certify.near_ties import first_divergence
from outrider_lab.data import workloads

MODES = {
    "greedy": SamplingParams(),
    "sampled": SamplingParams(temperature=0.7, top_p=0.95, presence_penalty=0.2, seed=1234),
}


def divergence(
    llm: LLM, prompt: list[int], params: SamplingParams, plain: list[int], other: list[int]
) -> dict[str, float]:
    """Where two outputs part, and the gap between the target's two most likely tokens there (a near-tie, or a bug)."""
    at = first_divergence(plain, other)
    assert at is not None
    step = llm.generate([prompt], replace(params, logprobs=2), speculation=SpeculationParams(draft="none"))[0].steps[at]
    best = sorted((step.logprobs or {}).values(), reverse=True)
    return {"position": at, "gap": best[0] - best[1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--draft-model")
    parser.add_argument("--draft-dtype", default="auto")
    parser.add_argument("--questions", default="mix", help="Spec-Bench JSONL; a built-in mix if left out")
    parser.add_argument("--count", type=int, default=6)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--sources", nargs="+", default=["ngram", "lookup"])
    parser.add_argument("--spec-length", type=int, default=8)
    parser.add_argument("--out", type=Path, help="write one JSON line per difference, and one of totals")
    args = parser.parse_args()

    picked = workloads.load(args.questions, count=args.count)
    llm = LLM(args.model, draft_model=args.draft_model, draft_dtype=args.draft_dtype)
    totals = {(mode, source): [0, 0, 0, 0] for mode in MODES for source in args.sources}
    differences: list[dict[str, object]] = []
    began = time.perf_counter()
    for number, question in enumerate(picked, 1):
        prompt = workloads.token_ids(llm.tokenizer, [question])[0]
        for mode, base in MODES.items():
            params = replace(base, max_tokens=args.max_tokens)
            plain = llm.generate([prompt], params, speculation=SpeculationParams(draft="none"))[0]
            for source in args.sources:
                speculation = SpeculationParams(draft=source, spec_length=args.spec_length)
                output = llm.generate([prompt], params, speculation=speculation)[0]
                total = totals[mode, source]
                total[0] += output.token_ids == plain.token_ids
                total[1] += 1
                total[2] += len(output.token_ids)
                total[3] += output.stats.target_runs
                if output.stats.draft_error:
                    raise SystemExit(f"{source} failed: {output.stats.draft_error}")
                if output.token_ids != plain.token_ids:
                    where = divergence(llm, prompt, params, plain.token_ids, output.token_ids)
                    differences.append({"question": question.id, "mode": mode, "source": source, **where})
                    print(f"\n{differences[-1]}")
        print(f"\r{number}/{len(picked)} questions, {len(differences)} differences, "
              f"{time.perf_counter() - began:.0f} s", end="", flush=True)  # fmt: skip
    print()
    for (mode, source), (same, count, tokens, runs) in totals.items():
        print(
            f"{mode:8} {source:7} {same} of {count} identical, "
            f"{tokens} tokens in {runs} target runs (τ {tokens / runs:.2f})"
        )
    if args.out:
        lines = [*differences, {"totals": {f"{m}/{s}": t for (m, s), t in totals.items()}}]
        args.out.write_text("".join(json.dumps(line) + "\n" for line in lines))
    raise SystemExit(1 if differences else 0)


if __name__ == "__main__":
    main()
