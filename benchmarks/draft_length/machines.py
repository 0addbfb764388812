"""What a forward pass costs by its rows, on machines that were measured (``benchmarks/README.md``), and a clock.

``gpu-flat`` and the widest passes of ``llama.cpp-rows`` and ``tinyllama-avx512`` are estimates.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

ROWS = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True)
class Mixture:
    """Distinct experts that passes of each of ``ROWS`` read, summed over layers, and the seconds that one takes."""

    timed: tuple[float, ...]  # by passes that are timed beforehand
    text: tuple[float, ...]  # by neighbours in texts
    seconds: float


@dataclass(frozen=True)
class Machine:
    """Seconds of a pass of each of ``ROWS``, and those that each token of context and each branch add to it."""

    seconds: tuple[float, ...]
    slope: tuple[float, ...] = (0.0,) * len(ROWS)
    branch: tuple[float, float] = (0.0, 0.0)  # at a short context, and for each token of context
    outside: float = 3e-4  # of a step, outside the pass
    drafting: float = 1.2e-4  # more, for each request with a draft that is scored
    context: int = 200  # behind which requests begin to decode
    experts: Mixture | None = None  # ``seconds`` are then those of passes that read as many as timed ones
    prompt: float = 0.0  # of a token of a prompt; 0: of a row of the widest pass

    def between(self, values: Sequence[float], rows: int) -> float:
        i = min(max(bisect_left(ROWS, rows), 1), len(ROWS) - 1)
        low, high = ROWS[i - 1], ROWS[i]
        return values[i - 1] + (rows - low) / (high - low) * (values[i] - values[i - 1])

    def reading(self, tokens: int) -> float:
        """Seconds until the first token of a prompt of so many."""
        return max(tokens * (self.prompt or self.seconds[-1] / ROWS[-1]), self.seconds[0]) + self.outside

    def union(self, rows: int) -> float:
        """The mean number of experts that a pass of so many rows of text reads; 0 without experts."""
        return 0.0 if self.experts is None else self.between(self.experts.text, rows)

    def step(self, rows: Sequence[int], contexts: Sequence[int], branches: Sequence[int]) -> tuple[float, float]:
        """Seconds of a step's pass, and of all else but proposals; each request has ``1 + its nodes`` rows."""
        taken = self.between(self.seconds, sum(rows))
        if self.experts is not None:
            taken += self.experts.seconds * (self.union(sum(rows)) - self.between(self.experts.timed, sum(rows)))
        for n, context, more in zip(rows, contexts, branches, strict=True):
            taken += max(0, context - 64) * self.between(self.slope, n)
            taken += more * (self.branch[0] + max(0, context - 64) * self.branch[1])
        return taken, self.outside + self.drafting * sum(n > 1 for n in rows)


def _ms(*values: float) -> tuple[float, ...]:
    return tuple(value / 1e3 for value in values)


_SMOLLM2 = (4.6e-7, 7.4e-7, 1.16e-6, 2.03e-6, 3.8e-6, 7.7e-6)
MACHINES = {
    "smollm2-vnni": Machine(_ms(2.14, 2.15, 2.31, 3.12, 5.09, 9.96), _SMOLLM2, (3.5e-5, 8.5e-9)),
    "smollm2-vnni-4k": Machine(_ms(2.14, 2.15, 2.31, 3.12, 5.09, 9.96), _SMOLLM2, (3.5e-5, 8.5e-8), context=4000),
    "smollm2-avx2": Machine(_ms(3.8, 4.1, 5.2, 7.8, 12.9, 24.9), _SMOLLM2, (3.5e-5, 8.5e-9)),
    "smollm2-avx2-slow": Machine(_ms(4.5, 5.2, 7.9, 14.0, 28.1, 56.0), _SMOLLM2, (3.5e-5, 8.5e-9)),
    "tinyllama-avx2": Machine(_ms(23.8, 26.7, 32.6, 39.6, 66.9, 133), outside=4e-4),
    "3b-avx2": Machine(_ms(134, 135, 140, 230, 457, 914), outside=5e-4),
    "moe-avx2": Machine(_ms(78, 111, 176, 290, 430, 640), outside=5e-4),
    "dear-rows": Machine(_ms(6.1, 9.2, 14.5, 25.1, 47.3, 92.0)),
}
"""Shapes of 3B and of experts: rows beyond four follow from the speed of reading prompts."""
WHOLE = {
    "smollm2-avx512": MACHINES["smollm2-vnni"],
    "smollm2-avx2": MACHINES["smollm2-avx2"],
    "tinyllama-avx512": Machine(_ms(16.1, 16.2, 16.8, 19.6, 32.6, 62), outside=4e-4),
    "tinyllama-avx2": MACHINES["tinyllama-avx2"],
    "3b-avx2": MACHINES["3b-avx2"],
    "gpu-flat": Machine(_ms(12.0, 12.0, 12.1, 12.2, 12.5, 13.2), prompt=1.5e-4),
    "llama.cpp-rows": Machine(_ms(19.9, 30.0, 46.1, 80.0, 90.0, 130.0), prompt=4e-3),
}
"""For whole requests: measured ones, a GPU on which rows cost next to nothing, and rows that cost as llama.cpp's do."""


def mixture(
    seconds: tuple[float, ...], one: int, each: float, timed: Sequence[float], text: Sequence[float]
) -> Machine:
    """``one``: experts of a row; ``timed``, ``text``: those of ``ROWS``, as multiples of it."""
    unions = [tuple(one * times for times in of) for of in (timed, text)]
    return Machine(seconds, outside=5e-4, experts=Mixture(unions[0], unions[1], each))


_64 = (_ms(21.2, 32.0, 48.9, 67.2, 93.6, 151), 192, 5.4e-5, (1, 1.82, 3.06, 4.27, 5.04, 5.8))
_64_TEXT = (1, 1.66, 2.58, 3.62, 4.63, 5.4)
MIXTURES = {
    "moe-64": mixture(*_64, _64_TEXT),
    "moe-64-alike": mixture(*_64, [1 + (times - 1) / 2 for times in _64_TEXT]),
    "moe-64-apart": mixture(*_64, [8 * (1 - (7 / 8) ** n) for n in ROWS]),
}
"""Measured by ``benchmarks.experts``: Qwen3-MoE's shape, 8 of 64 experts in 24 layers, on texts that share as those of
the small model that ``benchmarks.experts_lab`` trains, twice as much, or by chance alone."""


class Noise:
    """What a busy machine adds to what is measured: a few percent, and now and then a step that takes four times."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def __call__(self, seconds: float) -> float:
        spike = 4.0 if self._random.random() < 0.005 else 1.0
        return seconds * spike * self._random.lognormvariate(0.0, 0.03)
