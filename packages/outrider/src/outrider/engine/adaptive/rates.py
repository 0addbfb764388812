"""What became of one drafter's tokens, by how deep they were and how sure it was of them."""

from __future__ import annotations

from outrider.engine.adaptive.log_odds import Correction, corrected, learn
from outrider.engine.adaptive.settings import AdaptiveSettings
from outrider.verify.shapes import Acceptance as ByRank


class SourceRates:
    """How likely a drafter's tokens are to be accepted if their parents are, over all requests of a domain.

    Known beforehand is the drafter's score of a token, else what was measured of its guesses. Two corrections are added
    to its log-odds: that of the token's depth, and that of the bin its score falls into. Each learns from all tokens
    of that depth, or of that bin, so that both are soon known.
    """

    def __init__(self, settings: AdaptiveSettings, measured: ByRank = ()) -> None:
        """``measured``: by depth and rank, how often its guesses were right; (): not known."""
        self._settings, self._measured = settings, measured
        self._deepest, self._bins = settings.depth_bins - 1, settings.score_bins
        self._least, self._most = settings.min_probability, settings.max_probability
        self._depths = [Correction(settings.score_variance) for _ in range(settings.depth_bins)]
        self._scores = [Correction(settings.score_variance) for _ in range(settings.score_bins)]
        self._no_score = Correction(settings.unknown_variance)
        self._levels = [Correction(settings.unknown_variance) for _ in range(settings.depth_bins)]

    def probability(self, depth: int, score: float | None, rank: int, factor: float = 1.0) -> float:
        """Of a token at a depth, with a score or as the guess of some rank; ``factor``: by which its odds are higher in
        its request than in others."""
        by_depth, by_score = self._corrections(depth, score)
        prior = self._prior(depth, score, rank)
        odds = prior * by_depth.factor * by_score.factor * factor
        return odds / (1.0 - prior + odds)

    def learn(self, depth: int, score: float | None, rank: int, accepted: bool) -> None:
        """Its parent was accepted, and now it is known whether it was."""
        predicted = self.probability(depth, score, rank)
        learn(self._corrections(depth, score), predicted, accepted, self._settings.least_variance)

    def level_probability(self, depth: int, factor: float = 1.0) -> float:
        """Of a whole level to have the right token, behind a right one."""
        return corrected(self._prior(depth, None, 0), self._level(depth).factor * factor)

    def learn_level(self, depth: int, found: bool) -> None:
        """It is known whether a level had the right token."""
        learn([self._level(depth)], self.level_probability(depth), found, self._settings.least_variance)

    def _corrections(self, depth: int, score: float | None) -> tuple[Correction, Correction]:
        by_depth = self._depths[depth if depth < self._deepest else self._deepest]
        if score is None:
            return by_depth, self._no_score
        place = int(score * self._bins)
        return by_depth, self._scores[place if 0 <= place < self._bins else self._bins - 1]

    def _level(self, depth: int) -> Correction:
        return self._levels[min(depth, self._deepest)]

    def _prior(self, depth: int, score: float | None, rank: int) -> float:
        if score is None:
            if not self._measured:
                return self._settings.unknown_score
            row = self._measured[min(depth, len(self._measured) - 1)]
            score = row[rank] if rank < len(row) else 0.0
        return self._least if score < self._least else self._most if score > self._most else score
