"""How likely a draft token is to be kept: running estimates by source, depth and the source's own score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.core.draft import Draft

_DEPTHS = 4  # estimates of their own for the first tokens of a draft; later ones share the last
_LEVELS = 8  # of the source's score
_FORGET = 400.0  # trials after which counts are halved, so that estimates follow the traffic
_PRIOR = 6.0  # trials that the source's own score is worth
_UNKNOWN = 0.5  # the score of a source that gives none
_RECENT = 0.95  # what a request's past is worth after another trial
_OWN = 4.0  # trials before a request's own record counts half


@dataclass
class _Count:
    kept: float = 0.0
    trials: float = 0.0

    def add(self, kept: bool) -> None:
        if self.trials >= _FORGET:
            self.kept, self.trials = self.kept / 2, self.trials / 2
        self.kept += kept
        self.trials += 1


@dataclass
class _Record:
    """A request's own record: tokens kept, and tokens that the estimates said would be."""

    kept: float = 0.0
    expected: float = 0.0

    @property
    def factor(self) -> float:
        """How much better than the common estimate drafts do for this request."""
        return (self.kept + _OWN / 2) / (self.expected + _OWN / 2)


class Acceptance:
    """Learns from every draft, also from nodes that were proposed but not scored.

    What a node's chance is given that its parent was right: the share of such nodes that were, among those of the
    same source, depth and score, times what this request has shown. The source's own score is the prior.
    """

    def __init__(self) -> None:
        self._counts: dict[tuple[str, int, int], _Count] = {}
        self._levels: dict[tuple[str, int], _Count] = {}  # of whole levels, by source and depth
        self._records: dict[str, _Record] = {}

    def chances(self, request_id: str, draft: Draft, depths: Sequence[int]) -> list[float]:
        """Of each node to be on the accepted path: the product along its path."""
        factor = self._records[request_id].factor if request_id in self._records else 1.0
        out: list[float] = []
        for node, parent in enumerate(draft.parents):
            own = min(0.98, self._estimate(draft, node, depths[node]) * factor)
            out.append(own if parent < 0 else own * out[parent])
        return out

    def observe(self, request_id: str, draft: Draft, depths: Sequence[int], committed: Sequence[int]) -> None:
        """Compare a proposal with the tokens that were committed instead or because of it."""
        record = self._records.setdefault(request_id, _Record())
        right = {-1}  # nodes on the path of the committed tokens
        levels: dict[tuple[str, int], bool] = {}  # by source: whether it had the right token there, behind a right one
        for node, parent in enumerate(draft.parents):
            depth = depths[node]
            if parent not in right or depth >= len(committed):
                continue
            kept = draft.tokens[node] == committed[depth]
            if kept:
                right.add(node)
            record.kept = record.kept * _RECENT + kept
            record.expected = record.expected * _RECENT + self._estimate(draft, node, depth)
            source = draft.source_of(node)
            key = _key(source, depth, None if draft.scores is None else draft.scores[node])
            self._counts.setdefault(key, _Count()).add(kept)
            level = source, depth
            levels[level] = kept or levels.get(level, False)
        for (source, depth), found in levels.items():
            self._levels.setdefault((source, min(depth, _DEPTHS - 1)), _Count()).add(found)

    def ahead(self, request_id: str, source: str, paths: Sequence[Sequence[float]]) -> float:
        """How many tokens a level of ``source`` behind ``paths`` can be expected to bring: at most 1.

        ``paths``: the source's own scores of the tokens down to each of its places, all of one depth.
        """
        count = self._levels.get((source, min(len(paths[0]), _DEPTHS - 1)), _Count())
        level = (count.kept + _PRIOR * _UNKNOWN) / (count.trials + _PRIOR)
        factor = self._records[request_id].factor if request_id in self._records else 1.0
        reached = 0.0
        for path in paths:
            chance = 1.0
            for depth, score in enumerate(path):
                chance *= min(0.98, self._chance(source, depth, score) * factor)
            reached += chance
        return min(1.0, reached) * level

    def forget(self, request_id: str) -> None:
        """Drop a request's own record."""
        self._records.pop(request_id, None)

    def _estimate(self, draft: Draft, node: int, depth: int) -> float:
        return self._chance(draft.source_of(node), depth, None if draft.scores is None else draft.scores[node])

    def _chance(self, source: str, depth: int, score: float | None) -> float:
        """Of a token with this score, if its parent was right."""
        prior = _UNKNOWN if score is None else min(0.98, max(0.02, score))
        count = self._counts.get(_key(source, depth, score))
        if count is None:
            return prior
        return (count.kept + _PRIOR * prior) / (count.trials + _PRIOR)


def _key(source: str, depth: int, score: float | None) -> tuple[str, int, int]:
    return source, min(depth, _DEPTHS - 1), -1 if score is None else min(_LEVELS - 1, int(score * _LEVELS))
