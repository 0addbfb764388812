"""Speculative decoding of a table model by rejection sampling, with a fault of choice; small enough to see it right."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Literal, get_args

LETTERS = "abcdef"
DRAFTED = 3

Fault = Literal[
    "biased residual",
    "stale state",
    "shared generator",
    "wrong bonus token",
    "off-by-one roll-back",
    "dropped logit bias",
    "lossy acceptance at 0.9",
]
FAULTS: tuple[Fault, ...] = get_args(Fault)

Row = tuple[float, ...]
Bias = tuple[tuple[int, float], ...]


@cache
def logits(last: tuple[int, int]) -> Row:
    """The target's, by the last two tokens."""
    draw = random.Random(f"target {last}")
    return tuple(draw.gauss(0, 1.2) for _ in LETTERS)


@cache
def target(last: tuple[int, int], temperature: float, bias: Bias = ()) -> Row:
    """The target's distribution."""
    added = dict(bias)
    return _softmax([x + added.get(i, 0.0) for i, x in enumerate(logits(last))], temperature)


@cache
def drafter(last: tuple[int, int], temperature: float) -> Row:
    """A distribution near the target's."""
    draw = random.Random(f"drafter {last}")
    return _softmax([x + draw.gauss(0, 0.8) for x in logits(last)], temperature)


def _softmax(values: Sequence[float], temperature: float) -> Row:
    top = max(values)
    if temperature == 0:
        return tuple(float(i == values.index(top)) for i in range(len(values)))
    weights = [math.exp((x - top) / temperature) for x in values]
    return tuple(w / sum(weights) for w in weights)


def draw_from(row: Sequence[float], u: float) -> int:
    """The token at ``u`` of the distribution's inverse."""
    for token, p in enumerate(row):
        u -= p
        if u < 0:
            return token
    return max(range(len(row)), key=row.__getitem__)


class Engine:
    """Generates tokens behind a prompt's last two, with drafts (and the fault) or without."""

    def __init__(self, fault: Fault | None = None) -> None:
        self.fault = fault

    def generate(
        self, prompt: tuple[int, int], count: int, temperature: float, seed: object, bias: Mapping[int, float]
    ) -> list[int]:
        """With drafts."""
        uniform = random.Random(f"drafts {seed}").random
        biases = tuple(bias.items())
        output: list[int] = []
        state = list(prompt)  # the tokens that the engine believes in
        while len(output) < count:
            new = self._step(state, temperature, biases, uniform)
            output += new
        return output[:count]

    def plain(
        self, prompt: tuple[int, int], count: int, temperature: float, seed: object, bias: Mapping[int, float]
    ) -> list[int]:
        """Without drafts."""
        uniform = random.Random(f"plain {seed}").random
        state = list(prompt)
        for _ in range(count):
            state.append(draw_from(target((state[-2], state[-1]), temperature, tuple(bias.items())), uniform()))
        return state[2:]

    def _step(self, state: list[int], temperature: float, bias: Bias, uniform: Callable[[], float]) -> list[int]:
        """Draft, verify, and add the tokens to ``state``."""
        start = len(state)
        drafts, rows, draws = list(state), [], []
        for _ in range(DRAFTED):
            rows.append(drafter((drafts[-2], drafts[-1]), temperature))
            draws.append(uniform())
            drafts.append(draw_from(rows[-1], draws[-1]))
        scored: Bias = () if self.fault == "dropped logit bias" else bias
        for i, q in enumerate(rows):
            token = drafts[start + i]
            p = target((state[-2], state[-1]), temperature, scored)
            u = draws[i] if self.fault == "shared generator" else uniform()
            if u * q[token] < p[token] / (0.9 if self.fault == "lossy acceptance at 0.9" else 1.0):
                state.append(token)
                continue
            recovered = draw_from(self._residual(p, q), uniform())
            emitted = [*state[start:], recovered]
            state.append(token if self.fault == "stale state" else recovered)
            if self.fault == "off-by-one roll-back":
                del state[-2]
            return emitted
        last = (state[-3], state[-2]) if self.fault == "wrong bonus token" else (state[-2], state[-1])
        state.append(draw_from(target(last, temperature, bias), uniform()))
        return state[start:]

    def _residual(self, p: Row, q: Row) -> Row:
        if self.fault == "biased residual":
            return p
        left = [max(0.0, a - b) for a, b in zip(p, q, strict=True)]
        return tuple(x / sum(left) for x in left) if sum(left) else p
