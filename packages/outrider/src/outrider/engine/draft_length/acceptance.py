"""The probability that a draft token is accepted: its source's score, corrected by the record of earlier tokens.

log-odds(p) = log-odds(score) + correction of the source + correction of such scores + correction of the request
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from outrider.engine.draft_length.settings import DraftLengthSettings
from outrider.verify.shapes import Acceptance as ByRank

Measured = Callable[[str], ByRank]
"""By source: the measured acceptance rate of its guesses by depth and rank; (): not measured."""

_FARTHEST = 8.0  # log-odds: 0.95 becomes 0.006 at worst
_SCORE_BINS = 8  # of scores from 0 to 1, each with its own correction


def nothing_measured(source: str) -> ByRank:
    """The ``Measured`` of sources without measurements."""
    return ()


@dataclass(slots=True)
class Correction:
    """A term added to log-odds: a normal variable whose mean begins at 0."""

    variance: float
    least_variance: float
    mean: float = 0.0
    factor: float = 1.0  # exp(mean), by which odds are multiplied


def learn(corrections: Sequence[Correction], p: float, accepted: bool) -> None:
    """Learn from one trial, whose probability was ``p`` with all of these corrections.

    An extended Kalman filter, which is logistic regression, one trial at a time: uncertain corrections move more than
    certain ones, and all of them little if the outcome was nearly certain.
    """
    information = p * (1.0 - p)
    share = 1.0 / (1.0 + information * sum([each.variance for each in corrections]))
    for each in corrections:
        gain = each.variance * share
        each.mean = max(-_FARTHEST, min(_FARTHEST, each.mean + gain * (accepted - p)))
        each.factor = math.exp(each.mean)
        each.variance = max(each.least_variance, each.variance * (1.0 - gain * information))


class SourceAcceptance:
    """The acceptance probabilities of one source in one domain, for its tokens and for whole levels of its drafts."""

    def __init__(self, settings: DraftLengthSettings, measured: ByRank = ()) -> None:
        self._settings, self._measured = settings, measured
        variance, least = settings.prior_variance, settings.least_variance
        self._tokens, self._levels = Correction(variance, least), Correction(variance, least)
        self.score_bins = [Correction(variance, least) for _ in range(_SCORE_BINS)]

    @property
    def measured(self) -> bool:
        """Whether acceptance rates were measured beforehand."""
        return bool(self._measured)

    def prior(self, depth: int, score: float | None = None, rank: int = 0) -> float:
        """The probability that a token is accepted if its parent is, before anything is learned.

        ``score``: the source's own estimate. Without it (None), the measured rate of the token's ``rank`` counts.
        """
        ceiling = self._settings.max_probability
        if score is None and self._measured:
            row = self._measured[min(depth, len(self._measured) - 1)]
            score = row[rank] if rank < len(row) else 0.0
        return max(1.0 - ceiling, min(ceiling, self._settings.unknown_score if score is None else score))

    def token(self, prior: float, own: Correction) -> float:
        """The corrected probability of a token; ``own``: the correction of its request."""
        return self._corrected(prior, self._tokens.factor * self._of_score(prior).factor * own.factor)

    def level(self, paths: Sequence[Sequence[float]], own: Correction) -> float:
        """The expected number of accepted tokens, at most 1, of one more level.

        ``paths``: for each node that the level would extend, the source's scores from the root down to it.
        """
        reached = 0.0
        for path in paths:
            reached += math.prod([self.token(self.prior(depth, score), own) for depth, score in enumerate(path)])
        return min(1.0, reached) * self._level(len(paths[0]), own)

    def learn(self, prior: float, own: Correction, accepted: bool) -> None:
        """Learn whether a token was accepted whose parent was."""
        learn([self._tokens, self._of_score(prior), own], self.token(prior, own), accepted)

    def learn_level(self, depth: int, own: Correction, found: bool) -> None:
        """Learn whether a level behind an accepted node had the right token."""
        learn([self._levels], self._level(depth, own), found)

    def _of_score(self, prior: float) -> Correction:
        return self.score_bins[int(prior * _SCORE_BINS)]

    def _level(self, depth: int, own: Correction) -> float:
        return self._corrected(self.prior(depth), self._levels.factor * own.factor)

    def _corrected(self, prior: float, factor: float) -> float:
        odds = prior * factor
        return min(self._settings.max_probability, odds / (1.0 - prior + odds))


def ranks_of(parents: Sequence[int]) -> list[int]:
    """The rank of each node among its siblings, which come best first."""
    children: dict[int, int] = {}
    out: list[int] = []
    for parent in parents:
        out.append(children.get(parent, 0))
        children[parent] = out[-1] + 1
    return out
