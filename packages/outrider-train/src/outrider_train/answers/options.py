"""Options of ``outrider train answers``. All except ``Effort`` determine the answers; their folder records them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from outrider.errors import ConfigError

_COUNT = re.compile(r"(\d+(?:\.\d+)?)([kMG]?)")
_UNITS = {"": 1, "k": 1000, "M": 10**6, "G": 10**9}
_SHARES = ("greedy", "system_share", "context_share")


def parse_count(name: str, text: str) -> int:
    """``10M`` as a number; k, M and G are thousands, millions and thousand millions."""
    found = _COUNT.fullmatch(text.strip())
    count = round(float(found[1]) * _UNITS[found[2]]) if found else 0
    if count < 1:
        raise ConfigError(f"{name}={text!r} is no count: give a number above 0, such as 500, 20k or 10M")
    return count


def parse_range(name: str, text: str) -> tuple[int, int]:
    """``2k-8k``, or one number for both ends."""
    low, dash, high = text.partition("-")
    ends = parse_count(name, low), parse_count(name, high if dash else low)
    if ends[0] > ends[1]:
        raise ConfigError(f"{name}={text!r} goes down: give the smaller number first")
    return ends


@dataclass(frozen=True)
class AnswerOptions:
    """Options that, with the model, determine the answers, independently of the ``Effort``."""

    prompts: tuple[Path, ...] = ()  # files of prompts to answer; the target's own come after them
    documents: tuple[Path, ...] = ()  # texts that long contexts are made of; none: earlier conversations
    exclude: tuple[Path, ...] = ()  # questions that no prompt may contain
    max_tokens: int = 512  # of an answer
    prompt_tokens: int = 256  # of a prompt that the target writes
    greedy: float = 0.5  # share of the answers; the others are sampled
    temperature: float = 0.7  # of the sampled answers
    prompt_temperature: float = 1.0
    prompt_top_p: float = 0.95
    turns: tuple[int, int] = (1, 1)  # of a conversation, fewest and most
    system_share: float = 0.3  # of the target's own conversations that begin with one of ``openings.OPENINGS``
    context: tuple[int, int] | None = None  # tokens of a long context, fewest and most
    context_share: float = 0.1  # of the target's own conversations that have a long context
    seed: int = 0
    keep_all: bool = False  # answer each given prompt as it is: no filters

    def __post_init__(self) -> None:
        for name in _SHARES:
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name}={getattr(self, name)}: use a share from 0 to 1")
        for name in ("temperature", "prompt_temperature"):
            if not 0 < getattr(self, name) <= 10:
                raise ConfigError(f"{name}={getattr(self, name)}: use above 0, at most 10; --greedy 1 samples nothing")
        if not 0 < self.prompt_top_p <= 1:
            raise ConfigError(f"prompt_top_p={self.prompt_top_p}: use above 0, at most 1")
        if self.max_tokens < 2 or self.prompt_tokens < 2:
            raise ConfigError(f"max_tokens={self.max_tokens}, prompt_tokens={self.prompt_tokens}: use at least 2")
        if self.turns[1] > 16:
            raise ConfigError(f"turns={self.turns[0]}-{self.turns[1]}: use at most 16")
        if self.documents and self.context is None:
            raise ConfigError(f"documents={self.documents[0]} are for long contexts: add --context, such as 2k-8k")


@dataclass(frozen=True)
class Effort:
    """Amount of work. No field changes an answer, so a later run may use other values."""

    own: int | None = None  # the target's own conversations to keep; None: enough for ``tokens``
    tokens: int | None = None  # of answers to keep; None: no limit
    shard_lines: int = 2000
    stop: Callable[[], bool] = lambda: False
    """Called before each step of the engine; True ends the run in order."""

    def __post_init__(self) -> None:
        for name in ("own", "tokens", "shard_lines"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name}={value}: use at least 1")
