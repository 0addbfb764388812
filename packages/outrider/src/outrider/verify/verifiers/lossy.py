"""Lossy verifiers, which change the distribution of the output: lenience and typical acceptance."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from outrider.verify.distribution import TargetRows
from outrider.verify.draft import Draft, Verdict
from outrider.verify.noise import Noise, Purpose
from outrider.verify.tree import children
from outrider.verify.verifiers.base import Siblings
from outrider.verify.verifiers.recursive import Recursive


@dataclass(frozen=True)
class Lenient:
    """Rejection with ``q`` scaled down: accept with probability min(1, p / (l q)) (Leviathan et al. 2023, A.5).

    No token is emitted with more than ``1 / l`` times its probability (docs/algorithms/lenient.md). For a greedy
    request ``p`` is one-hot, and the rule would change nothing. There the verifier accepts the likeliest child with
    ``p(x) >= l max(p)``, where ``p`` is the distribution before temperature.
    """

    lenience: float
    name: ClassVar[str] = "lenient"
    exact: ClassVar[bool] = False
    shares_noise: ClassVar[bool] = False
    takes_trees: ClassVar[bool] = True
    siblings: ClassVar[Siblings] = Siblings.WITHOUT_REPLACEMENT

    def __call__(self, draft: Draft, p: TargetRows, noise: Noise, position: int) -> Verdict:
        if p.greedy:
            return self._nearly_best(draft, p, noise, position)
        return Recursive(self.name, lenience=self.lenience)(draft, p, noise, position)

    def _nearly_best(self, draft: Draft, p: TargetRows, noise: Noise, position: int) -> Verdict:
        below = children(draft.parents)
        path: list[int] = []
        while True:
            row = 1 + path[-1] if path else 0
            if below[row]:
                weights = p.untempered(row)
                node = max(below[row], key=lambda i: float(weights[draft.tokens[i]]))  # the first of equals
                if float(weights[draft.tokens[node]]) >= math.log(self.lenience):
                    path.append(node)
                    continue
            return Verdict(tuple(path), p.draw(row, noise, position + len(path)))


@dataclass(frozen=True)
class Typical:
    """Accept a token with p(x) > min(threshold, alpha exp(-H(p))) (Cai et al. 2024, Medusa).

    The bound rises as the target's entropy H (nats) falls. The longest accepted path is kept, the likeliest among
    equally long paths. The distance of the output's distribution from ``p`` has no bound. At temperature 0 the output
    is that of greedy decoding, because a one-hot ``p`` has one token above the threshold.
    """

    threshold: float
    alpha: float
    name: ClassVar[str] = "typical"
    exact: ClassVar[bool] = False
    shares_noise: ClassVar[bool] = False
    takes_trees: ClassVar[bool] = True
    siblings: ClassVar[Siblings] = Siblings.WITHOUT_REPLACEMENT

    def __call__(self, draft: Draft, p: TargetRows, noise: Noise, position: int) -> Verdict:
        below = children(draft.parents)
        accepted: list[tuple[tuple[int, ...], float]] = [((), 0.0)]  # paths, with their log-probabilities
        for path, score in accepted:  # the loop appends to the list
            row = 1 + path[-1] if path else 0
            if below[row]:
                probs = p.probs(row)
                bound = min(self.threshold, self.alpha * math.exp(-_entropy(probs)))
                for node in below[row]:
                    chance = float(probs[draft.tokens[node]])
                    if chance > bound:
                        accepted.append(((*path, node), score + math.log(chance)))
        path, _ = max(accepted, key=lambda found: (len(found[0]), found[1]))
        row = 1 + path[-1] if path else 0
        return Verdict(path, noise.draw(p.log_weights(row), position, Purpose.RECOVER, row))


def _entropy(probs: NDArray[np.float64]) -> float:
    """The entropy of ``probs`` [vocab], in nats."""
    possible = probs[probs > 0]
    return -float((possible * np.log(possible)).sum())
