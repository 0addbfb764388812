"""Options of transcription."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from outrider.errors import InvalidRequestError

Task = Literal["transcribe", "translate"]


@dataclass(frozen=True, kw_only=True)
class TranscriptionOptions:
    """Defaults are those of the published recipe (Radford et al. 2022, section 4.5)."""

    language: str | None = None
    """The spoken language, by its code or English name; None: detected in the first 30 seconds."""
    task: Task = "transcribe"
    """``transcribe``, or ``translate`` into English."""
    prompt: str = ""
    """Context of the first 30 seconds, such as the spelling of names."""
    timestamps: bool = True
    """Segments with times; False: every 30 seconds are one segment."""
    condition_on_previous_text: bool = True
    """Whether the text so far is the context of the next 30 seconds."""
    temperatures: tuple[float, ...] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    """The first temperature, then the others while a text repeats itself or is unlikely."""
    compression_ratio_threshold: float | None = 2.4
    """Above this ratio of zlib, a text repeats itself; None: no limit."""
    log_prob_threshold: float | None = -1.0
    """Below this mean log-probability of its tokens, before any rule, a text is unlikely; None: no limit."""
    no_speech_threshold: float | None = 0.6
    """Above this probability of ``<|nospeech|>``, an unlikely text counts as silence; None: no limit."""
    seed: int = 0
    """Seed of sampling at temperatures above 0."""

    def __post_init__(self) -> None:
        if self.task not in ("transcribe", "translate"):
            raise InvalidRequestError(f"task={self.task!r} is unknown: use transcribe or translate", param="task")
        if not self.temperatures or not all(0 <= each <= 2 for each in self.temperatures):
            raise InvalidRequestError(
                f"temperatures={self.temperatures!r} are not valid: use numbers from 0 to 2", param="temperature"
            )
