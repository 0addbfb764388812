"""A conversation after a restart: its first token beside reading its files, and how long others wait meanwhile.

    python -m benchmarks.sessions MODEL --tokens 20000 [--kv-cache-dtype int8] [--encrypt] [--gaps] [--keep FOLDER]

The conversation is computed once and saved. Then, in turn and several times, its files are read plainly (whole, one
after the other, by one thread), and the model is loaded again and asked for its first token: once with the files out of
the page cache, which are then read from the disk, and once with all of them in it.

``--gaps``: also the longest time between two tokens of another caller, while the conversation is restored, and how much
longer a step takes that copies as many rows for files as a step may.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

from outrider import LLM, SamplingParams
from outrider.cache.sessions import moving
from outrider.cache.sessions.files import PLAIN, SEALED

WORDS = "the reader keeps a page of what was said before and goes on when it is asked again".split()  # noqa: SIM905
OTHER = "Another caller, whose text has nothing to do with this."
FRESH = 4_000  # tokens whose rows are held back until the answer begins
ANSWER = 64  # tokens of the answer in whose steps they are copied
WARM = 32  # tokens of the other caller before anything is measured


def text_of(llm: LLM, tokens: int, first: str = "") -> list[int]:
    """A prompt of so many tokens, in which no phrase repeats for long."""
    words = [WORDS[(i * i + 7 * i) % len(WORDS)] + (str(i) if i % 5 == 0 else "") for i in range(tokens)]
    return llm.tokenizer.encode(" ".join([first, *words]))[:tokens]


def first_token(llm: LLM, prompt: list[int]) -> tuple[float, int]:
    """Seconds until the first token, and how many tokens of the prompt were not computed."""
    began = time.perf_counter()
    answer = llm.generate([prompt], SamplingParams(max_tokens=1, ignore_eos=True))
    return time.perf_counter() - began, answer[0].stats.cached_prompt_tokens


def files(folder: Path) -> list[Path]:
    """Those of rows and states, in the order in which they were written."""
    found = [*folder.rglob(f"*{PLAIN}"), *folder.rglob(f"*{SEALED}")]
    return sorted(found, key=lambda path: path.stat().st_ctime_ns)


def read_plainly(paths: Sequence[Path]) -> tuple[float, int]:
    """Seconds to read all files, and their bytes."""
    began = time.perf_counter()
    size = sum(len(path.read_bytes()) for path in paths)
    return time.perf_counter() - began, size


def forget(paths: Sequence[Path]) -> None:
    """Drop the files from the page cache."""
    for path in paths:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def restart(open_model: Callable[[], LLM], prompt: list[int], paths: Sequence[Path], rounds: int) -> dict[str, Any]:
    """Medians of the first token and of plain reading, in seconds, with files on the disk and in the page cache."""
    times: dict[str, list[float]] = {
        f"{what}, {where}": [] for where in ("disk", "memory") for what in ("read", "first")
    }
    cached = 0
    for _ in range(rounds):
        for where in ("disk", "memory"):
            if where == "disk":
                forget(paths)
            times.setdefault(f"read, {where}", []).append(read_plainly(paths)[0])
            with open_model() as llm:
                if where == "disk":
                    forget(paths)
                took, cached = first_token(llm, prompt)
            times.setdefault(f"first, {where}", []).append(took)
    return {"not computed": cached, **{name: statistics.median(each) for name, each in times.items()}, "all": times}


def gap_of_another(open_model: Callable[[], LLM], prompt: list[int], paths: Sequence[Path]) -> dict[str, float]:
    """The other caller's usual and longest step, in seconds, while the conversation comes from the disk."""
    with open_model() as llm:
        times: list[float] = []
        is_warm, is_over = threading.Event(), threading.Event()

        def listen() -> None:
            params = SamplingParams(max_tokens=len(prompt) // 2, ignore_eos=True)
            try:
                for _ in llm.stream(OTHER, params, speculation={"draft": "none"}):
                    times.append(time.perf_counter())
                    if len(times) == WARM:
                        is_warm.set()
                    if is_over.is_set():
                        return
            finally:
                is_warm.set()

        other = threading.Thread(target=listen)
        other.start()
        is_warm.wait()
        forget(paths)
        began = time.perf_counter()
        first_token(llm, prompt)
        ended = time.perf_counter()
        is_over.set()
        other.join()
    gaps = [(b - a, a, b) for a, b in pairwise(times)]
    meanwhile = [gap for gap, a, b in gaps if b > began and a < ended]
    alone = [gap for gap, _, b in gaps if b <= began]
    return {
        "usual": statistics.median(alone),
        "longest alone": max(alone[WARM // 2 :]),
        "median meanwhile": statistics.median(meanwhile),
        "longest meanwhile": max(meanwhile),
    }


def saving(open_model: Callable[[], LLM], tokens: int) -> dict[str, float]:
    """Seconds of a step of one token, and of those that copy as much as a step may, which others wait for."""
    limit = moving.STEP_BYTES
    with open_model() as llm:
        prompt = text_of(llm, min(FRESH, tokens), secrets.token_hex(8))
        moving.STEP_BYTES = 0  # nothing is copied while the prompt is read
        times: list[float] = []
        for _ in llm.stream(prompt, SamplingParams(max_tokens=ANSWER, ignore_eos=True), speculation={"draft": "none"}):
            times.append(time.perf_counter())
            if len(times) == ANSWER // 4:
                moving.STEP_BYTES = limit
        size = len(prompt) * sum(array[0].nbytes for array in llm.engine.cache.pool.arrays)
    gaps = [b - a for a, b in pairwise(times)]
    before, copying = gaps[: ANSWER // 4 - 1], gaps[ANSWER // 4 - 1 :][: max(1, size // limit)]
    return {"MB": limit / 1e6, "usual": statistics.median(before), "longest": max(copying), "steps": len(copying)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kv-cache-dtype", default="auto")
    parser.add_argument("--encrypt", action="store_true", help="with a random key, kept beside the folder")
    parser.add_argument("--gaps", action="store_true")
    parser.add_argument("--keep", type=Path, help="a folder for the files, which may be those of an earlier run")
    args = parser.parse_args()
    with ExitStack() as stack:
        folder: Path = args.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        place, key = folder / "sessions", folder / "key"
        folder.mkdir(parents=True, exist_ok=True)
        if args.encrypt and not key.exists():
            key.write_bytes(secrets.token_bytes(32))
        options: dict[str, Any] = {
            "session_dir": f"{place},key={key}" if args.encrypt else str(place),
            "session_gb": 64.0,
            "kv_cache_dtype": args.kv_cache_dtype,
            "max_seq_len": args.tokens + 64,
            "max_batched_tokens": 512,
        }

        def open_model(places: int = 1) -> LLM:
            return LLM(args.model, max_batch_size=places, **options)

        with open_model() as llm:
            prompt = text_of(llm, args.tokens)
            computed, known = first_token(llm, prompt)
        paths = files(place)
        size = read_plainly(paths)[1]
        result = {"tokens": len(prompt), "MB": size / 1e6, "encrypted": args.encrypt}
        result |= {"first, computed": computed} if not known else {}
        result |= restart(open_model, prompt, paths, args.rounds)
        if args.gaps:
            result |= {
                "gaps": gap_of_another(lambda: open_model(2), prompt, paths),
                "saving": saving(open_model, args.tokens),
            }
    report(result)


def report(result: dict[str, Any]) -> None:
    """Print the result for people, and as a line of JSON."""
    print(
        f"{result['tokens']:,} tokens, {result['MB']:,.0f} MB in files, {result['not computed']:,} tokens not computed"
    )
    if "first, computed" in result:
        print(f"first token, computed: {result['first, computed']:.2f} s")
    for where, name in (("disk", "from the disk"), ("memory", "from the page cache")):
        read, first = result[f"read, {where}"], result[f"first, {where}"]
        print(f"{name}: files read in {read:.3f} s, first token in {first:.3f} s, {first / read:.2f} times that")
    for name, each in ((name, result[name]) for name in ("gaps", "saving") if name in result):
        units = {key: value * (1 if key in ("MB", "steps") else 1e3) for key, value in each.items()}
        print(f"{name} (ms):", ", ".join(f"{key} {value:,.1f}" for key, value in units.items()))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
