"""Windows of half a minute by transformers, whisper.cpp and this engine, plain and drafted for by a smaller Whisper.

    python -m benchmarks.speech_peer FILE... --model DIR --draft-model DIR [--cpp ggml-base.bin]

All decode the same windows greedily, in turn, without the text before; times hold encoders and decoders. transformers
computes in float32, whisper.cpp (package pywhispercpp, weights in its own format) in float16, this engine in
``--dtype``. ``same`` counts windows whose words are those of transformers. Other work disturbs processor seconds less.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections import defaultdict
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from outrider import LLM, Sound, SpeculationParams, TranscriptionOptions
from outrider_multimodal.speech import read_sound

_SECONDS = 30
OPTIONS = TranscriptionOptions(
    language="en",
    temperatures=(0.0,),
    no_speech_threshold=None,
    condition_on_previous_text=False,
    timestamps=False,
)

Way = Callable[[Sound], str]
"""The text of a window."""


def theirs(folder: str, draft: str) -> dict[str, Way]:
    """Plain and assisted generation."""
    from transformers import WhisperForConditionalGeneration, WhisperProcessor

    processor = WhisperProcessor.from_pretrained(folder)
    model, assistant = (WhisperForConditionalGeneration.from_pretrained(each).eval() for each in (folder, draft))

    def run(sound: Sound, **options: Any) -> str:
        features = processor(sound.samples, sampling_rate=16000, return_tensors="pt").input_features
        with torch.inference_mode():
            found = model.generate(features, language="en", task="transcribe", do_sample=False, **options)
        text: str = processor.batch_decode(found, skip_special_tokens=True)[0]
        return text

    return {
        "transformers": run,
        "transformers, assisted": lambda sound: run(sound, assistant_model=assistant),
    }


def cpp(file: Path, threads: int) -> dict[str, Way]:
    """whisper.cpp, without its fallbacks."""
    model = import_module("pywhispercpp.model").Model(
        str(file), n_threads=threads, print_progress=False, print_realtime=False
    )

    def run(sound: Sound) -> str:
        found = model.transcribe(
            sound.samples.copy(),
            language="en",
            no_context=True,
            no_timestamps=True,
            temperature_inc=0.0,
            single_segment=True,
        )
        return " ".join(segment.text for segment in found)

    return {"whisper.cpp": run}


def ours(folder: str, draft: str, dtype: str, draft_dtype: str, threads: int) -> dict[str, Way]:
    more: dict[str, Any] = {"dtype": dtype, "draft_dtype": draft_dtype, "threads": threads, "prefix_reuse": False}
    llm = LLM(folder, draft_model=draft, **more)

    def run(sound: Sound, name: str) -> str:
        return str(llm.transcribe(sound, OPTIONS, speculation=SpeculationParams(draft=name)).text)

    return {"outrider": lambda sound: run(sound, "none"), "outrider, model": lambda sound: run(sound, "model")}


def words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9']+", text.lower())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--model", required=True)
    parser.add_argument("--draft-model", required=True)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--draft-dtype", default="float32")
    parser.add_argument("--cpp", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--windows", type=int, default=8)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    ways = theirs(args.model, args.draft_model) | (cpp(args.cpp, args.threads) if args.cpp else {})
    ways |= ours(args.model, args.draft_model, args.dtype, args.draft_dtype, args.threads)
    sounds = [read_sound(file) for file in args.files]
    step = _SECONDS * 16000
    windows = [Sound(s.samples[at : at + step]) for s in sounds for at in range(0, len(s.samples) - step, step)]
    seconds: dict[str, float] = defaultdict(float)
    used: dict[str, float] = defaultdict(float)
    same: dict[str, int] = defaultdict(int)
    for run in ways.values():  # what is done once in a process
        run(Sound(windows[0].samples[: 3 * 16000]))
    for i, window in enumerate(windows[: args.windows], start=1):
        found: dict[str, list[str]] = {}
        for name, run in ways.items():
            begun, before = time.perf_counter(), time.process_time()
            found[name] = words(run(window))
            seconds[name] += time.perf_counter() - begun
            used[name] += time.process_time() - before
        for name in ways:
            same[name] += found[name] == found["transformers"]
        rows = {
            name: {"seconds": round(seconds[name], 2), "processor_s": round(used[name], 2), "same": same[name]}
            for name in ways
        }
        print(json.dumps({"windows": i, "threads": args.threads, "rows": rows}), flush=True)


if __name__ == "__main__":
    main()
