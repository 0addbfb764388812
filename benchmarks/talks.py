"""Speech to measure with: texts read aloud by espeak-ng, and short recordings strung together.

    python -m benchmarks.talks TO --texts FILE.jsonl --category summarization --talks 10 --words 380
    python -m benchmarks.talks TO --recordings /usr/share/asterisk/sounds/en_US_f_Allison --talks 2 --seconds 120

The first reads ``turns[0]`` of the questions of a category, each talk in another voice. The second takes WAV files of
at least a second in alphabetical order (Debian's package asterisk-core-sounds-en-wav: a person's voice, CC-BY-SA).
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from scipy.io import wavfile

from outrider_multimodal.speech import read_sound
from outrider_multimodal.speech.audio import RATE

_VOICES = ("en-us", "en-gb", "en-us+f2", "en-gb+m3", "en-gb-scotland", "en-us+m7", "en-gb+f4", "en-us+f5")
_PAUSE = 0.4  # seconds between recordings


def read_aloud(texts: list[str], to: Path, talks: int, words: int) -> None:
    for i, text in enumerate(texts[:talks]):
        spoken = " ".join(text.removeprefix("Summarize:").split()[:words])
        voice = _VOICES[i % len(_VOICES)]
        file = to / f"read-{i:02}.wav"
        subprocess.run(["espeak-ng", "-v", voice, "-s", "150", "-w", str(file), spoken], check=True)


def strung(folder: Path, talks: int, seconds: float) -> Iterator[np.ndarray]:
    """Recordings one after another, until there is so much of each talk."""
    pause = np.zeros(round(_PAUSE * RATE), np.float32)
    parts: list[np.ndarray] = []
    for file in sorted(folder.rglob("*.wav")):
        sound = read_sound(file)
        if sound.seconds < 1:
            continue
        parts += [sound.samples, pause]
        if sum(map(len, parts)) > seconds * RATE:
            yield np.concatenate(parts)
            parts, talks = [], talks - 1
        if not talks:
            return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("to", type=Path)
    parser.add_argument("--texts", type=Path)
    parser.add_argument("--category", default="summarization")
    parser.add_argument("--recordings", type=Path)
    parser.add_argument("--talks", type=int, default=10)
    parser.add_argument("--words", type=int, default=380)
    parser.add_argument("--seconds", type=float, default=120)
    args = parser.parse_args()
    args.to.mkdir(parents=True, exist_ok=True)
    if args.texts is not None:
        questions = [json.loads(line) for line in args.texts.read_text(encoding="utf-8").splitlines()]
        texts = [q["turns"][0] for q in questions if q["category"] == args.category]
        read_aloud([text for text in texts if len(text.split()) >= args.words], args.to, args.talks, args.words)
    if args.recordings is not None:
        for i, samples in enumerate(strung(args.recordings, args.talks, args.seconds)):
            wavfile.write(args.to / f"recorded-{i:02}.wav", RATE, (samples * 32767).astype(np.int16))


if __name__ == "__main__":
    main()
