"""Whisper with and without drafts: is every token the same, how many come a run, and how long does it take?

    python -m benchmarks.speech FILE... --model DIR --draft-model DIR --draft none model suffix

Every file is transcribed with each kind of drafts in turn, so that all of them meet the machine alike. ``model:K`` has
the draft model propose K tokens; other names are those of draft sources. The first kind is what the others are held
against.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from outrider import LLM
from outrider.config import SpeculationParams
from outrider.config.request import Scheduling
from outrider.engine.stats import RequestStats
from outrider.native.processor import num_threads
from outrider_multimodal.speech import Sound, Transcript, TranscriptionOptions, read_sound


def speculation(name: str) -> SpeculationParams:
    source, _, length = name.partition(":")
    more: dict[str, Any] = {"spec_length": int(length)} if length else {}
    return SpeculationParams(draft=source, **more)


def run(
    llm: LLM, sound: Sound, name: str, options: TranscriptionOptions, sound_number: int = -1
) -> tuple[Transcript, float, float]:
    """The transcript, its seconds, and the processor seconds, which other work on the machine disturbs less."""
    begun, used = time.perf_counter(), time.process_time()
    apart: Scheduling = {"cache_salt": f"{name} {sound_number}"}  # nothing is learned from another run or talk
    done = llm.transcribe(sound, options, speculation=speculation(name), scheduling=apart)
    return done, time.perf_counter() - begun, time.process_time() - used


def tokens(transcript: Transcript) -> list[tuple[int, ...]]:
    return [segment.token_ids for segment in transcript.segments]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--draft-model")
    parser.add_argument("--draft", nargs="+", default=["none", "model", "suffix"])
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--draft-dtype", default="auto")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--no-context", action="store_true")
    parser.add_argument("--temperature", type=float, nargs="+")
    parser.add_argument("--json", type=Path)
    parser.add_argument("files", nargs="+", type=Path)
    args = parser.parse_args()
    given: dict[str, Any] = {"draft_model": args.draft_model, "draft": "model"} if args.draft_model else {}
    llm = LLM(args.model, dtype=args.dtype, draft_dtype=args.draft_dtype, threads=args.threads, **given)
    more: dict[str, Any] = {"temperatures": tuple(args.temperature)} if args.temperature else {}
    options = TranscriptionOptions(language="en", condition_on_previous_text=not args.no_context, **more)
    stats: dict[str, RequestStats] = defaultdict(RequestStats)
    seconds: dict[str, float] = defaultdict(float)
    used: dict[str, float] = defaultdict(float)
    same: dict[str, int] = defaultdict(int)
    sound_seconds = 0.0
    run(llm, read_sound(args.files[0]), args.draft[0], options)  # what is done once in a process
    for i, file in enumerate(args.files):
        sound = read_sound(file)
        sound_seconds += sound.seconds
        turned = args.draft[i % len(args.draft) :] + args.draft[: i % len(args.draft)]
        found = {name: run(llm, sound, name, options, i) for name in turned}
        first = found[args.draft[0]][0]
        for name, (transcript, took, processor) in found.items():
            stats[name].add(transcript.stats)
            seconds[name] += took
            used[name] += processor
            same[name] += tokens(transcript) == tokens(first)
        times = ", ".join(f"{name} {took:.1f} s" for name, (_, took, _) in found.items())
        print(f"{file.name}: {sound.seconds:.0f} s, {times}", flush=True)
        rows = [
            _row(name, stats[name], seconds[name], same[name], i + 1, sound_seconds)
            | {"processor_s": round(used[name], 1)}
            for name in args.draft
        ]
        result = {"sound_s": round(sound_seconds, 1), "threads": num_threads(), "rows": rows}
        if args.json is not None:
            args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    for row in rows:
        print(row)
    print(json.dumps(result))


def _row(name: str, s: RequestStats, seconds: float, same: int, files: int, sound_seconds: float) -> dict[str, Any]:
    rate = s.draft_acceptance_rate
    return {
        "draft": name,
        "files": files,
        "same": same,
        "tokens": s.completion_tokens,
        "tokens_per_run": round(s.mean_acceptance_length or 0, 3),
        "acceptance": None if rate is None else round(rate, 3),
        "by_source": s.by_source,
        "decode_s": round(s.decode_s, 1),
        "draft_s": round(s.draft_s, 1),
        "seconds": round(seconds, 1),
        "times_real": round(sound_seconds / seconds, 2),
        "draft_error": s.draft_error,
    }


if __name__ == "__main__":
    main()
