"""Windows of half a minute by transformers and by this engine, plain and drafted for by a smaller Whisper.

    python -m benchmarks.speech_peer FILE... --model DIR --draft-model DIR

Both decode the same windows greedily in float32, without the text before; times hold encoders and decoders.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from outrider import LLM, Sound, SpeculationParams, TranscriptionOptions
from outrider.speech import read_sound

_SECONDS = 30
OPTIONS = TranscriptionOptions(
    language="en",
    temperatures=(0.0,),
    no_speech_threshold=None,
    condition_on_previous_text=False,
    timestamps=False,
)


def theirs(folder: str, draft: str) -> dict[str, Callable[[Sound], list[int]]]:
    """Plain and assisted generation: the text's tokens of a window."""
    from transformers import WhisperForConditionalGeneration, WhisperProcessor

    processor = WhisperProcessor.from_pretrained(folder)
    model, assistant = (WhisperForConditionalGeneration.from_pretrained(each).eval() for each in (folder, draft))

    def run(sound: Sound, **options: Any) -> list[int]:
        features = processor(sound.samples, sampling_rate=16000, return_tensors="pt").input_features
        with torch.inference_mode():
            found = model.generate(features, language="en", task="transcribe", do_sample=False, **options)[0]
        return [token for token in found.tolist() if token < model.config.eos_token_id]

    return {
        "transformers": run,
        "transformers, assisted": lambda sound: run(sound, assistant_model=assistant),
    }


def ours(folder: str, draft: str) -> dict[str, Callable[[Sound], list[int]]]:
    llm = LLM(folder, draft_model=draft, dtype="float32", draft_dtype="float32", prefix_reuse=False)

    def run(sound: Sound, name: str) -> list[int]:
        done = llm.transcribe(sound, OPTIONS, speculation=SpeculationParams(draft=name))
        ids = (token for segment in done.segments for token in segment.token_ids)
        return [token for token in ids if token < llm.transcriber.vocabulary.end]

    return {"outrider": lambda sound: run(sound, "none"), "outrider, model": lambda sound: run(sound, "model")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--model", required=True)
    parser.add_argument("--draft-model", required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--windows", type=int, default=8)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    ways = theirs(args.model, args.draft_model) | ours(args.model, args.draft_model)
    sounds = [read_sound(file) for file in args.files]
    step = _SECONDS * 16000
    windows = [Sound(s.samples[at : at + step]) for s in sounds for at in range(0, len(s.samples) - step, step)]
    seconds: dict[str, float] = defaultdict(float)
    same: dict[str, int] = defaultdict(int)
    tokens = 0
    for run in ways.values():  # what is done once in a process
        run(windows[0])
    for window in windows[: args.windows]:
        found: dict[str, list[int]] = {}
        for name, run in ways.items():
            begun = time.perf_counter()
            found[name] = run(window)
            seconds[name] += time.perf_counter() - begun
        tokens += len(found["outrider"])
        for name in ways:
            same[name] += found[name] == found["transformers"]
        print({name: round(each, 2) for name, each in seconds.items()}, dict(same), flush=True)
    print(json.dumps({"windows": args.windows, "tokens": tokens, "seconds": seconds, "same": same}))


if __name__ == "__main__":
    main()
