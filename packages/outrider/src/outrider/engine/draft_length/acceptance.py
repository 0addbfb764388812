"""How likely a draft token is to be accepted: what its source says, corrected by what became of such tokens.

log-odds(p) = log-odds(score) + correction of the source + correction of the request
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from outrider.engine.draft_length.settings import DraftLengthSettings
from outrider.verify.shapes import Acceptance as ByRank

Measured = Callable[[str], ByRank]
"""By source: how often its guess of each rank at each depth was right, as measured beforehand; (): not known."""

_FARTHEST = 8.0  # log-odds: 0.95 becomes 0.006 at worst


def nothing_measured(source: str) -> ByRank:
    """Of sources that nobody has measured."""
    return ()


@dataclass(slots=True)
class Correction:
    """What is added to log-odds: normal, with a mean that begins at 0 and a variance that says how far off it is."""

    variance: float
    mean: float = 0.0
    factor: float = 1.0  # exp(mean), by which odds are multiplied


def learn(corrections: Sequence[Correction], p: float, accepted: bool, least_variance: float) -> None:
    """A trial is over, of which ``p`` was the probability with all of these corrections.

    They move as an extended Kalman filter moves them (logistic regression, one trial at a time): the uncertain ones
    more than the others, and hardly where the outcome was all but certain.
    """
    information = p * (1.0 - p)
    share = 1.0 / (1.0 + information * sum([each.variance for each in corrections]))
    for each in corrections:
        gain = each.variance * share
        each.mean = max(-_FARTHEST, min(_FARTHEST, each.mean + gain * (accepted - p)))
        each.factor = math.exp(each.mean)
        each.variance = max(least_variance, each.variance * (1.0 - gain * information))


class SourceAcceptance:
    """Of one source in one domain: the odds of its tokens, and of a further level to have the right one."""

    def __init__(self, settings: DraftLengthSettings, measured: ByRank = ()) -> None:
        self._settings, self._measured = settings, measured
        self._tokens, self._levels = Correction(settings.prior_variance), Correction(settings.prior_variance)

    def prior(self, depth: int, score: float | None = None, rank: int = 0) -> float:
        """The probability of a token, before anything is learned, if its parent is accepted.

        ``score``: what the source says of it; None: nothing, so that what was measured of its ``rank`` counts.
        """
        ceiling = self._settings.max_probability
        if score is None and self._measured:
            row = self._measured[min(depth, len(self._measured) - 1)]
            score = row[rank] if rank < len(row) else 0.0
        return max(1.0 - ceiling, min(ceiling, self._settings.unknown_score if score is None else score))

    def token(self, prior: float, own: Correction) -> float:
        """The probability of a token; ``own``: the correction of its request."""
        return self._corrected(prior, self._tokens.factor * own.factor)

    def level(self, paths: Sequence[Sequence[float]], own: Correction) -> float:
        """Tokens that a level behind ``paths`` is expected to bring, at most 1.

        ``paths``: the source's scores down to each place.
        """
        reached = 0.0
        for path in paths:
            reached += math.prod([self.token(self.prior(depth, score), own) for depth, score in enumerate(path)])
        return min(1.0, reached) * self._level(len(paths[0]), own)

    def learn(self, prior: float, own: Correction, accepted: bool) -> None:
        """A token's parent was accepted, and now it is known whether it was."""
        learn([self._tokens, own], self.token(prior, own), accepted, self._settings.least_variance)

    def learn_level(self, depth: int, own: Correction, found: bool) -> None:
        """A level lay behind a right one, and now it is known whether it had the right token."""
        learn([self._levels], self._level(depth, own), found, self._settings.least_variance)

    def _level(self, depth: int, own: Correction) -> float:
        return self._corrected(self.prior(depth), self._levels.factor * own.factor)

    def _corrected(self, prior: float, factor: float) -> float:
        odds = prior * factor
        return min(self._settings.max_probability, odds / (1.0 - prior + odds))


def ranks_of(parents: Sequence[int]) -> list[int]:
    """Of each node among its parent's children, which come best first."""
    children: dict[int, int] = {}
    out: list[int] = []
    for parent in parents:
        out.append(children.get(parent, 0))
        children[parent] = out[-1] + 1
    return out
