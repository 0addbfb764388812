"""How a sound is transcribed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from outrider.errors import InvalidRequestError

__all__ = ["TranscriptionOptions"]

Task = Literal["transcribe", "translate"]


@dataclass(frozen=True, kw_only=True)
class TranscriptionOptions:
    """Defaults are those of the published recipe (Radford et al. 2022, section 4.5)."""

    language: str | None = None
    """What is spoken, by its code or English name; None: found out from the first half minute."""
    task: Task = "transcribe"
    """``translate`` is into English."""
    prompt: str = ""
    """Text that the first half minute is taken to follow: names, and how they are spelled."""
    timestamps: bool = True
    """Segments with times; without, each half minute is one segment."""
    condition_on_previous_text: bool = True
    """The text so far is the context of the next half minute."""
    temperatures: tuple[float, ...] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    """The first, then the others where a text repeats itself or is unlikely."""
    compression_ratio_threshold: float | None = 2.4
    """A text that zlib makes smaller by more repeats itself; None: never."""
    log_prob_threshold: float | None = -1.0
    """A text whose tokens have a lower mean log-probability, by the model before any rule, is unlikely; None: never."""
    no_speech_threshold: float | None = 0.6
    """Where ``<|nospeech|>`` is likelier than this, and the text unlikely, nothing was said; None: something always."""
    seed: int = 0
    """Of what is drawn at temperatures above 0."""

    def __post_init__(self) -> None:
        if self.task not in ("transcribe", "translate"):
            raise InvalidRequestError(f"task={self.task!r} is unknown: use transcribe or translate", param="task")
        if not self.temperatures or not all(0 <= each <= 2 for each in self.temperatures):
            raise InvalidRequestError(
                f"temperatures={self.temperatures!r} are not valid: use numbers from 0 to 2", param="temperature"
            )
