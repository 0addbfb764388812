"""A conversation after a restart: its first token, beside computing the prompt and beside reading its files.

    python -m benchmarks.sessions MODEL --tokens 20000 [--kv-cache-dtype int8]

The conversation is read once and saved; then the model is loaded again, three times, each with the files out of the
page cache if this user may drop them.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from outrider import LLM, SamplingParams

WORDS = "the reader keeps a page of what was said before and goes on when it is asked again".split()  # noqa: SIM905


def text_of(llm: LLM, tokens: int) -> list[int]:
    """A prompt of so many tokens, in which no phrase repeats for long."""
    words = [WORDS[(i * i + 7 * i) % len(WORDS)] + (str(i) if i % 5 == 0 else "") for i in range(tokens)]
    return llm.tokenizer.encode(" ".join(words))[:tokens]


def first_token(llm: LLM, prompt: list[int]) -> tuple[float, int]:
    """Seconds until the first token, and how many tokens of the prompt were not computed."""
    began = time.perf_counter()
    answer = llm.generate([prompt], SamplingParams(max_tokens=1, ignore_eos=True))
    return time.perf_counter() - began, answer[0].stats.cached_prompt_tokens


def seconds_to_read(folder: Path) -> tuple[float, int]:
    """Of all files in ``folder``, and their bytes."""
    began, size = time.perf_counter(), 0
    for path in folder.rglob("*.safetensors"):
        size += len(path.read_bytes())
    return time.perf_counter() - began, size


def forget(folder: Path) -> None:
    """Drop the files from the page cache."""
    for path in folder.rglob("*.safetensors"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--kv-cache-dtype", default="auto")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        options: dict[str, Any] = {
            "session_dir": place,
            "session_gb": 64.0,
            "max_batch_size": 1,
            "kv_cache_dtype": args.kv_cache_dtype,
        }
        options |= {"max_seq_len": args.tokens + 64, "max_batched_tokens": 512}
        with LLM(args.model, **options) as llm:
            prompt = text_of(llm, args.tokens)
            computed, _ = first_token(llm, prompt)
        restored, reading = [], []
        for _ in range(3):
            forget(folder)
            took, size = seconds_to_read(folder)
            reading.append(took)
            forget(folder)
            with LLM(args.model, **options) as llm:
                took, cached = first_token(llm, prompt)
            restored.append(took)
    first, read = statistics.median(restored), statistics.median(reading)
    print(f"{len(prompt):,} tokens, {size / 1e6:,.0f} MB in files, {cached:,} tokens not computed")
    print(f"first token: computed {computed:.2f} s, restored {first:.2f} s")
    print(f"reading the files alone: {read:.2f} s, so {first / read:.2f} times that")


if __name__ == "__main__":
    main()
