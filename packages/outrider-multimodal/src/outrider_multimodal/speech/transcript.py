"""Transcripts: segments with times, and subtitles."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from outrider.engine.stats import RequestStats


@dataclass(frozen=True)
class Segment:
    """The text between two times, in seconds."""

    start: float
    end: float
    text: str
    token_ids: tuple[int, ...]  # including time stamps, relative to its window
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float
    seek: int  # hundredths of a second at which its window began

    def as_dict(self, index: int) -> dict[str, Any]:
        """The segment's object in OpenAI's ``verbose_json``."""
        return {
            "id": index,
            "seek": self.seek,
            "start": round(self.start, 2),
            "end": round(self.end, 2),
            "text": self.text,
            "tokens": list(self.token_ids),
            "temperature": self.temperature,
            "avg_logprob": round(self.avg_logprob, 4),
            "compression_ratio": round(self.compression_ratio, 4),
            "no_speech_prob": round(self.no_speech_prob, 4),
        }


@dataclass(frozen=True)
class Transcript:
    """The transcript of a whole sound."""

    language: str  # its code
    task: str
    duration: float  # seconds
    segments: list[Segment]
    stats: RequestStats = field(repr=False)  # of all decoding together

    @property
    def text(self) -> str:
        return "".join(segment.text for segment in self.segments).strip()

    def as_dict(self) -> dict[str, Any]:
        """The object of OpenAI's ``verbose_json``."""
        return {
            "task": self.task,
            "language": self.language,
            "duration": round(self.duration, 2),
            "text": self.text,
            "segments": [segment.as_dict(i) for i, segment in enumerate(self.segments)],
        }

    def srt(self) -> str:
        """Subtitles in SubRip's format."""
        return "\n".join(
            f"{i}\n{_clock(s.start, ',')} --> {_clock(s.end, ',')}\n{_cue(s.text)}\n"
            for i, s in enumerate(self.segments, start=1)
        )

    def vtt(self) -> str:
        """Subtitles as WebVTT."""
        cues = (
            f"{_clock(s.start, '.')} --> {_clock(s.end, '.')}\n{_cue(s.text, escape=True)}\n" for s in self.segments
        )
        return "\n".join(["WEBVTT\n", *cues])


FORMATS = ("text", "srt", "vtt", "json")


def _clock(seconds: float, point: str) -> str:
    """00:01:02.340, with ``point`` before the milliseconds."""
    ms = round(seconds * 1000)
    return f"{ms // 3_600_000:02}:{ms // 60_000 % 60:02}:{ms // 1000 % 60:02}{point}{ms % 1000:03}"


def _cue(text: str, *, escape: bool = False) -> str:
    """``text`` as one line that no parser takes for a cue's end or times."""
    line = " ".join(text.split()).replace("-->", "->")
    return line.replace("&", "&amp;").replace("<", "&lt;") if escape else line
