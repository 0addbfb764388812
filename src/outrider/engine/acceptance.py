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
        self._by_depth: dict[tuple[str, int], _Count] = {}
        self._records: dict[str, _Record] = {}

    def chances(self, request_id: str, draft: Draft, depths: Sequence[int]) -> list[float]:
        """Of each node to be on the accepted path: the product along its path."""
        factor = self._records[request_id].factor if request_id in self._records else 1.0
        out: list[float] = []
        for node, parent in enumerate(draft.parents):
            own = min(0.98, self._estimate(draft, node, depths[node]) * factor)
            out.append(own if parent < 0 else own * out[parent])
        return out

    def observe(
        self, request_id: str, draft: Draft, depths: Sequence[int], committed: Sequence[int], asked: str | None = None
    ) -> None:
        """Compare a proposal with the tokens that were committed instead or because of it.

        ``asked``: the name by which ``typical`` is to know whoever made the proposal; None: the draft's source.
        """
        record = self._records.setdefault(request_id, _Record())
        right = {-1}  # nodes on the path of the committed tokens
        for node, parent in enumerate(draft.parents):
            depth = depths[node]
            if parent not in right or depth >= len(committed):
                continue
            kept = draft.tokens[node] == committed[depth]
            if kept:
                right.add(node)
            record.kept = record.kept * _RECENT + kept
            record.expected = record.expected * _RECENT + self._estimate(draft, node, depth)
            key = self._key(draft, node, depth)
            self._counts.setdefault(key, _Count()).add(kept)
            self._by_depth.setdefault((asked or draft.source, key[1]), _Count()).add(kept)

    def typical(self, source: str, depth: int) -> float:
        """The chance of a token at ``depth``, if those before it were right, before the proposal is known."""
        count = self._by_depth.get((source, min(depth, _DEPTHS - 1)), _Count())
        return (count.kept + _PRIOR * _UNKNOWN) / (count.trials + _PRIOR)

    def forget(self, request_id: str) -> None:
        """Drop a request's own record."""
        self._records.pop(request_id, None)

    def _estimate(self, draft: Draft, node: int, depth: int) -> float:
        prior = _UNKNOWN if draft.scores is None else min(0.98, max(0.02, draft.scores[node]))
        count = self._counts.get(self._key(draft, node, depth))
        if count is None:
            return prior
        return (count.kept + _PRIOR * prior) / (count.trials + _PRIOR)

    def _key(self, draft: Draft, node: int, depth: int) -> tuple[str, int, int]:
        level = -1 if draft.scores is None else min(_LEVELS - 1, int(draft.scores[node] * _LEVELS))
        return draft.source_of(node), min(depth, _DEPTHS - 1), level
