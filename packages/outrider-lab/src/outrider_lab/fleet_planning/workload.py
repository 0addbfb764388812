"""Workload of a simulated fleet: arrivals, lengths and shared prefixes, from distributions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from outrider.errors import InvalidRequestError

Segment = tuple[object, int]
"""A part of a prompt: a name for its tokens and all tokens before them, and the number of its tokens."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Lengths:
    """Numbers of tokens: ``fixed``, ``uniform`` between two, or ``lognormal`` of a mean and a standard deviation."""

    kind: str
    first: float
    second: float = 0.0

    @classmethod
    def parse(cls, text: str, name: str) -> Lengths:
        """``512``, ``64-1024`` or ``512:200`` (mean and standard deviation). Raises InvalidRequestError."""
        match = re.fullmatch(r"(\d+)(?:([-:])(\d+))?", text.strip())
        if match is None or int(match[1]) < 1 or (match[2] == "-" and int(match[3]) < int(match[1])):
            raise InvalidRequestError(
                f"{name}={text!r} is no length: write 512, 64-1024 (uniform) or 512:200 (mean and standard deviation)",
                param=name,
            )
        kind = {"-": "uniform", ":": "lognormal", None: "fixed"}[match[2]]
        return cls(kind, float(match[1]), float(match[3] or 0))

    @property
    def mean(self) -> float:
        return (self.first + self.second) / 2 if self.kind == "uniform" else self.first

    def draw(self, rng: np.random.Generator, count: int) -> Ints:
        """``count`` random lengths: int64 [count], each at least 1."""
        if self.kind == "uniform":
            return rng.integers(int(self.first), int(self.second) + 1, count)
        if self.kind == "fixed" or self.second == 0:
            return np.full(count, int(self.first), dtype=np.int64)
        spread = np.log1p((self.second / self.first) ** 2)
        drawn = rng.lognormal(np.log(self.first) - spread / 2, np.sqrt(spread), count)
        return np.maximum(1, np.rint(drawn)).astype(np.int64)


@dataclass(frozen=True)
class Workload:
    """Requests in order of arrival. Arrays are [requests].

    A prompt consists of its ``segments`` in order; two prompts share their equal leading segments. ``follows`` is the
    index of the request that must end before this one arrives, or -1.
    """

    arrivals: Floats  # seconds
    prompts: Ints  # tokens
    outputs: Ints  # tokens
    sessions: Ints
    follows: Ints
    segments: Sequence[tuple[Segment, ...]]
    grows: bool = True  # a session's next prompt contains the answer
    duration: float = 0.0  # seconds in which requests arrive

    def __len__(self) -> int:
        return len(self.arrivals)

    @property
    def rate(self) -> float:
        """Requests a second."""
        return len(self) / self.duration if self.duration else 0.0


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Distributions for synthesised requests."""

    rate: float  # requests a second
    input_len: Lengths = Lengths("lognormal", 512, 256)  # tokens that each turn adds
    output_len: Lengths = Lengths("lognormal", 128, 64)
    duration: float = 60.0  # seconds
    burstiness: float = 1.0  # 1: Poisson; smaller: in bursts
    turns: float = 1.0  # turns of a conversation, on average
    think_s: float = 10.0  # seconds between two turns, on average
    prefix_len: int = 0  # tokens of a system prompt
    num_prefixes: int = 1  # different system prompts
    max_context: int = 32768  # tokens; a conversation that would be longer begins anew

    def __post_init__(self) -> None:
        for name in ("rate", "duration", "burstiness", "think_s", "num_prefixes"):
            value = getattr(self, name)
            if not 0 < value < float("inf"):
                raise InvalidRequestError(f"{name}={value:g} is not valid: use a positive number", param=name)
        if self.turns < 1 or self.prefix_len < 0:
            raise InvalidRequestError(
                f"turns={self.turns:g}, prefix_len={self.prefix_len} are not valid: use at least 1 turn and 0 tokens",
                param="turns" if self.turns < 1 else "prefix_len",
            )


def synthesize(traffic: Traffic, seed: int = 0) -> Workload:
    """Random requests with the distributions of ``traffic``.

    Each distribution has its own generator, so that changing one leaves the others' numbers. Conversations begin before
    time 0 as often as after it, so that the rate is the same from the first second on.
    """
    t = traffic
    starts, turns, gaps, prompts, outputs, prefixes = (np.random.default_rng([seed, purpose]) for purpose in range(6))
    span = 0.0 if t.turns == 1 else 5 * t.turns * t.think_s
    expected = t.rate / t.turns * (t.duration + span)
    count = int(expected + 6 * np.sqrt(expected / min(1.0, t.burstiness)) + 16)
    began = np.cumsum(starts.gamma(t.burstiness, t.turns / (t.rate * t.burstiness), count)) - span
    began = began[began < t.duration]
    each = np.ones(len(began), dtype=np.int64) if t.turns == 1 else turns.geometric(1 / t.turns, len(began))
    total = int(each.sum())
    session = np.repeat(np.arange(len(began)), each)
    first = np.zeros(total, dtype=bool)
    first[np.cumsum(each) - each] = True
    waits = np.where(first, 0.0, gaps.exponential(t.think_s, total))
    passed = np.cumsum(waits)
    times = began[session] + passed - passed[first][session]
    asked, answered = t.input_len.draw(prompts, total), t.output_len.draw(outputs, total)
    both = np.cumsum(asked + answered)
    history = both - both[first][session] + (asked + answered)[first][session] - asked - answered
    prefix = prefixes.integers(0, t.num_prefixes, len(began))
    number, history = _afresh(session, history, asked + answered, t.max_context - t.prefix_len)
    length = t.prefix_len + history + asked
    kept = np.flatnonzero((times >= 0) & (times < t.duration))
    kept = kept[np.argsort(times[kept], kind="stable")]
    place = np.full(total, -1)
    place[kept] = np.arange(len(kept))
    segments = _segments(kept, t.prefix_len, prefix[session], number, length)
    follows = np.where(first[kept], -1, place[kept - 1])
    return Workload(times[kept], length[kept], answered[kept], session[kept], follows, segments, True, t.duration)


def _afresh(session: Ints, history: Ints, turn: Ints, limit: int) -> tuple[Ints, Ints]:
    """The talk and the history (tokens) of each turn; a session whose history outgrows ``limit`` begins a new talk."""
    number, shorter = session.copy(), history.copy()
    fresh, dropped, last = int(session.max(initial=0)) + 1, 0, -1
    for i in np.flatnonzero(np.isin(session, session[history + turn > limit])):
        if session[i] != last:
            last, dropped, talk = session[i], 0, session[i]
        if history[i] - dropped + turn[i] > limit:
            dropped, talk, fresh = history[i], fresh, fresh + 1
        number[i], shorter[i] = talk, history[i] - dropped
    return number, shorter


def _segments(kept: Ints, prefix_len: int, prefix: Ints, number: Ints, length: Ints) -> list[tuple[Segment, ...]]:
    talks = [("talk", talk) for talk in number[kept].tolist()]
    if not prefix_len:
        return [((talk, tokens),) for talk, tokens in zip(talks, length[kept].tolist(), strict=True)]
    return [
        ((("prefix", shared), prefix_len), (talk, tokens - prefix_len))
        for shared, talk, tokens in zip(prefix[kept].tolist(), talks, length[kept].tolist(), strict=True)
    ]
