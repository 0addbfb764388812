"""What another busy process on the same cores costs: its share, or stalls?

    python -m benchmarks.busy --threads 2

Gaps between the tokens of one request, decoded without drafts, alone and beside processes that do nothing but count,
in turns. Prints the median, the 99th percentile and the longest gap, and one JSON line.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import time

from outrider import LLM, SamplingParams


def gaps(llm: LLM, tokens: int) -> list[float]:
    """Seconds between tokens, ascending, without the first few."""
    params = SamplingParams(max_tokens=tokens, ignore_eos=True)
    times = [time.perf_counter() for _ in llm.stream("Once upon a time", params)]
    return sorted(b - a for a, b in itertools.pairwise(times[4:]))


def summary(seconds: list[float]) -> dict[str, float]:
    return {
        "tokens_per_s": round(1 / statistics.mean(seconds), 1),
        "median_ms": round(1e3 * statistics.median(seconds), 2),
        "p99_ms": round(1e3 * seconds[int(0.99 * len(seconds))], 2),
        "longest_ms": round(1e3 * seconds[-1], 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    llm = LLM(args.model, draft="none", max_batch_size=1, max_seq_len=1024, threads=args.threads)
    gaps(llm, args.tokens)
    found: dict[str, list[float]] = {"alone": [], "beside": []}
    for _ in range(args.rounds):
        found["alone"] += gaps(llm, args.tokens)
        others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(args.processes)]
        try:
            time.sleep(0.2)  # until they are under way
            found["beside"] += gaps(llm, args.tokens)
        finally:
            for other in others:
                other.kill()
                other.wait()
    result = {name: summary(sorted(seconds)) for name, seconds in found.items()}
    for name, row in result.items():
        print(f"{name:8}" + "".join(f"  {key} {value:8}" for key, value in row.items()))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
