"""How likely a draft token is to be accepted: running estimates by drafter, depth and the drafter's own score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.core.draft import Draft
from outrider.engine.adaptive.settings import DEFAULT_SETTINGS, AdaptiveSettings


@dataclass
class _Count:
    accepted: float = 0.0
    trials: float = 0.0

    def add(self, accepted: bool, most: float) -> None:
        """Count a trial; with ``most`` trials, those before are halved."""
        if self.trials >= most:
            self.accepted, self.trials = self.accepted / 2, self.trials / 2
        self.accepted += accepted
        self.trials += 1


@dataclass
class _Record:
    """A request's own record: tokens accepted, and tokens that the estimates said would be."""

    accepted: float = 0.0
    expected: float = 0.0


class Acceptance:
    """Estimates acceptance probabilities; learns from every proposal, also from nodes that were not scored.

    The probability of a node given that its parent is accepted: the share of such nodes that were, among those of the
    same drafter, depth and score, times how well drafts have done for this request. The drafter's own score is the
    prior.
    """

    def __init__(self, settings: AdaptiveSettings = DEFAULT_SETTINGS) -> None:
        self._settings = settings
        self._counts: dict[tuple[str, int, int], _Count] = {}  # by drafter, depth and score
        self._levels: dict[tuple[str, int], _Count] = {}  # of whole levels, by drafter and depth
        self._records: dict[str, _Record] = {}

    @property
    def num_rates(self) -> int:
        """Shares that have been learned."""
        return len(self._counts) + len(self._levels)

    def forget_rates(self) -> None:
        """Forget all of them; requests keep their own records."""
        self._counts.clear()
        self._levels.clear()

    def probabilities(self, request_id: str, draft: Draft) -> list[float]:
        """Of each node to be on the accepted path: the product along its path."""
        factor, ceiling = self._factor(request_id), self._settings.max_probability
        out: list[float] = []
        for node, parent in enumerate(draft.parents):
            own = min(ceiling, self._estimate(draft, node) * factor)
            out.append(own if parent < 0 else own * out[parent])
        return out

    def observe(self, request_id: str, draft: Draft, committed: Sequence[int]) -> None:
        """Compare a proposal with the tokens that were committed instead or because of it."""
        settings = self._settings
        record = self._records.setdefault(request_id, _Record())
        right = {-1}  # nodes on the path of the committed tokens
        levels: dict[tuple[str, int], bool] = {}  # by drafter: whether it had the right token there, behind a right one
        for node, parent in enumerate(draft.parents):
            depth = draft.depths[node]
            if parent not in right or depth >= len(committed):
                continue
            accepted = draft.tokens[node] == committed[depth]
            if accepted:
                right.add(node)
            record.accepted = record.accepted * settings.request_decay + accepted
            record.expected = record.expected * settings.request_decay + self._estimate(draft, node)
            source = draft.source_of(node)
            key = self._key(source, depth, None if draft.scores is None else draft.scores[node])
            self._counts.setdefault(key, _Count()).add(accepted, settings.max_trials)
            level = source, depth
            levels[level] = accepted or levels.get(level, False)
        for (source, depth), found in levels.items():
            key_of_level = source, min(depth, settings.depth_bins - 1)
            self._levels.setdefault(key_of_level, _Count()).add(found, settings.max_trials)

    def expected_tokens(self, request_id: str, source: str, paths: Sequence[Sequence[float]]) -> float:
        """How many tokens a further level of ``source`` behind ``paths`` can be expected to bring: at most 1.

        ``paths``: the drafter's own scores of the tokens down to each of its places, all of one depth.
        """
        settings = self._settings
        count = self._levels.get((source, min(len(paths[0]), settings.depth_bins - 1)), _Count())
        prior = settings.prior_trials
        level = (count.accepted + prior * settings.unknown_score) / (count.trials + prior)
        factor = self._factor(request_id)
        reached = 0.0
        for path in paths:
            probability = 1.0
            for depth, score in enumerate(path):
                probability *= min(settings.max_probability, self._given_parent(source, depth, score) * factor)
            reached += probability
        return min(1.0, reached) * level

    def finish(self, request_id: str) -> None:
        """Drop a request's own record."""
        self._records.pop(request_id, None)

    def _factor(self, request_id: str) -> float:
        """How much better than the common estimate drafts do for this request."""
        record = self._records.get(request_id)
        if record is None:
            return 1.0
        prior = self._settings.request_prior_tokens
        return (record.accepted + prior) / (record.expected + prior)

    def _estimate(self, draft: Draft, node: int) -> float:
        score = None if draft.scores is None else draft.scores[node]
        return self._given_parent(draft.source_of(node), draft.depths[node], score)

    def _given_parent(self, source: str, depth: int, score: float | None) -> float:
        """The probability of a token with this score, if its parent is accepted."""
        s = self._settings
        prior = s.unknown_score if score is None else min(s.max_probability, max(s.min_probability, score))
        count = self._counts.get(self._key(source, depth, score))
        if count is None:
            return prior
        return (count.accepted + s.prior_trials * prior) / (count.trials + s.prior_trials)

    def _key(self, source: str, depth: int, score: float | None) -> tuple[str, int, int]:
        s = self._settings
        return (
            source,
            min(depth, s.depth_bins - 1),
            -1 if score is None else min(s.score_bins - 1, int(score * s.score_bins)),
        )
