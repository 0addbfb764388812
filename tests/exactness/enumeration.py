"""The exact law of anything that draws from ``Noise``: every outcome of every draw, with its probability.

A function of noise is run once for each way its draws can turn out, as if they were the nodes of a decision tree:

    law(lambda noise: noise.draw(log_half, 0))                  {0: 0.5, 1: 0.5}
    law(lambda noise: noise.uniform(0, ACCEPT) * 0.8 < 0.2)     {True: 0.25, False: 0.75}

So verifiers and sources are tested as they are, to the last digit, where samples would show errors of a few per
cent. What this cannot see is whether streams that should be independent are; samples with real noise can.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from outrider.config import SamplingParams
from outrider.verify import shaping
from outrider.verify.arrays import Array, host
from outrider.verify.noise import Noise, Purpose
from tests.arrays import Floats, softmax

Outcome = TypeVar("Outcome", bound=Hashable)


class Uniform:
    """A uniform number that is only ever scaled and compared, and decides when it is."""

    def __init__(self, noise: Enumerating, scale: float = 1.0) -> None:
        self._noise, self._scale = noise, scale

    def __mul__(self, factor: float) -> Uniform:
        return Uniform(self._noise, self._scale * factor)

    def __lt__(self, bound: float) -> bool:
        chance = 1.0 if bound >= self._scale else bound / self._scale  # 0 < 0 is false, and 0 * u < b is true
        chance = 0.0 if bound == 0 else chance
        return self._noise.choose([chance, 1 - chance]) == 0


class Enumerating(Noise):
    """Noise whose draws follow a script, and ask for the first possible outcome beyond its end."""

    def __init__(self, script: list[int]) -> None:
        super().__init__(0)
        self.script, self.options, self.weight = script, list[list[int]](), 1.0
        self._keys = set[tuple[object, ...]]()
        self._places: list[float] = []

    def choose(self, chances: list[float]) -> int:
        step = len(self.options)
        possible = [i for i, chance in enumerate(chances) if chance > 0]
        self.options.append(possible)
        choice = self.script[step] if step < len(self.script) else possible[0]
        self.weight *= chances[choice]
        return choice

    def uniform(self, position: int, purpose: Purpose, node: int = 0) -> float:
        self._use("uniform", position, purpose, node)
        if purpose is Purpose.ORDER:
            return self._place()
        return Uniform(self)  # type: ignore[return-value]  # it behaves like one where verifiers use it

    def draw(self, log_weights: Array, position: int, purpose: Purpose = Purpose.MATCH, node: int = 0) -> int:
        self._use("draw", position, purpose, node)
        return self._draw(host(log_weights))

    def draw_from_logits(
        self,
        logits: NDArray[np.float32],
        params: SamplingParams,
        position: int,
        purpose: Purpose = Purpose.MATCH,
        node: int = 0,
    ) -> int:
        return self.draw(shaping.log_weights(logits, params), position, purpose, node)

    def draw_without_replacement(
        self, log_weights: Array, count: int, position: int, purpose: Purpose = Purpose.MATCH, node: int = 0
    ) -> list[int]:
        self._use("draw", position, purpose, node)
        weights, drawn = host(log_weights).copy(), list[int]()
        while len(drawn) < count and bool((weights > -np.inf).any()):
            drawn.append(self._draw(weights))
            weights[drawn[-1]] = -np.inf
        return drawn

    def _draw(self, log_weights: Floats) -> int:
        return self.choose(softmax(log_weights.astype(np.float64)).tolist())

    def _use(self, *key: object) -> None:
        assert key not in self._keys, f"{key} was drawn twice in one step"
        self._keys.add(key)

    def _place(self) -> float:
        """A number that falls into each gap between the earlier ones with the same probability."""
        ordered = [0.0, *sorted(self._places), 1.0]
        gap = self.choose([1 / (len(ordered) - 1)] * (len(ordered) - 1))
        self._places.append((ordered[gap] + ordered[gap + 1]) / 2)
        return self._places[-1]


def law(run: Callable[[Noise], Outcome]) -> dict[Outcome, float]:
    """The probability of each outcome of ``run``."""
    found: dict[Outcome, float] = {}
    script: list[int] | None = []
    while script is not None:
        noise = Enumerating(script)
        outcome = run(noise)
        found[outcome] = found.get(outcome, 0.0) + noise.weight
        script = _next(script, noise.options)
    return found


def _next(script: list[int], options: list[list[int]]) -> list[int] | None:
    """The script that takes the next turn at the last draw that has one left."""
    taken = script + [possible[0] for possible in options[len(script) :]]
    for step in reversed(range(len(options))):
        rest = [i for i in options[step] if i > taken[step]]
        if rest:
            return [*taken[:step], rest[0]]
    return None
