"""How likely a draft token is to be accepted: what its drafter says, corrected by what became of such tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from outrider.engine.adaptive.kinds import Kind, Kinds, RequestRecord
from outrider.engine.adaptive.log_odds import learn
from outrider.engine.adaptive.rates import SourceRates
from outrider.engine.adaptive.settings import DEFAULT_SETTINGS, AdaptiveSettings
from outrider.verify.draft import Draft
from outrider.verify.shapes import Acceptance as ByRank

Measured = Callable[[str], ByRank]
"""By drafter: how often its guess of each rank at each depth was right, as measured beforehand; (): not known."""


def nothing_measured(source: str) -> ByRank:
    """Of drafters that nobody has measured."""
    return ()


class Acceptance:
    """Estimates acceptance probabilities; learns from every proposal, also from nodes that were not scored.

    The odds of a node, given that its parent is accepted, are those in all requests (``SourceRates``), times how much
    higher they are in this request. A request begins with what requests of its kind had (``Kinds``).
    """

    def __init__(self, settings: AdaptiveSettings = DEFAULT_SETTINGS, measured: Measured = nothing_measured) -> None:
        self._settings, self._measured = settings, measured
        self._rates: dict[str, SourceRates] = {}
        self._kinds = Kinds(settings)
        self._records: dict[str, RequestRecord] = {}

    @property
    def num_rates(self) -> int:
        """Drafters, and kinds of requests with each, of which something has been learned."""
        return len(self._rates) + len(self._kinds)

    def forget_rates(self) -> None:
        """Forget all of them; requests keep their own records."""
        self._rates.clear()
        self._kinds.clear()

    def start(self, request_id: str, kind: Kind) -> None:
        """A request begins with what is known of its kind."""
        self._records[request_id] = RequestRecord(kind)

    def finish(self, request_id: str) -> None:
        """Drop a request's own record; its kind learns from it."""
        record = self._records.pop(request_id, None)
        if record is not None:
            self._kinds.end(record)

    def probabilities(self, request_id: str, draft: Draft) -> list[float]:
        """Of each node to be on the accepted path: the product along its path."""
        ceiling, scores, depths, sources = self._settings.max_probability, draft.scores, draft.depths, draft.sources
        ranks = _ranks(draft.parents) if scores is None else ()
        about = {name: (self._rates_of(name), self._factor(request_id, name)) for name in {*sources} or {draft.source}}
        out: list[float] = []
        for node, parent in enumerate(draft.parents):
            rates, factor = about[sources[node] if sources else draft.source]
            score, rank = (None, ranks[node]) if scores is None else (scores[node], 0)
            own = min(ceiling, rates.probability(depths[node], score, rank, factor))
            out.append(own if parent < 0 else own * out[parent])
        return out

    def observe(self, request_id: str, draft: Draft, committed: Sequence[int]) -> None:
        """Compare a proposal with the tokens that were committed instead or because of it."""
        right = {-1}  # nodes on the path of the committed tokens
        levels: dict[tuple[str, int], bool] = {}  # by drafter: whether it had the right token there, behind a right one
        scores, depths = draft.scores, draft.depths
        ranks = _ranks(draft.parents) if scores is None else ()
        for node, parent in enumerate(draft.parents):
            depth = depths[node]
            if parent not in right or depth >= len(committed):
                continue
            accepted = draft.tokens[node] == committed[depth]
            if accepted:
                right.add(node)
            source = draft.source_of(node)
            score, rank = (None, ranks[node]) if scores is None else (scores[node], 0)
            self._learn(request_id, source, depth, score, rank, accepted)
            level = source, depth
            levels[level] = accepted or levels.get(level, False)
        for (source, depth), found in levels.items():
            self._rates_of(source).learn_level(depth, found)

    def expected_tokens(self, request_id: str, source: str, paths: Sequence[Sequence[float]]) -> float:
        """How many tokens a further level of ``source`` behind ``paths`` can be expected to bring: at most 1.

        ``paths``: the drafter's own scores of the tokens down to each of its places, all of one depth.
        """
        rates, factor = self._rates_of(source), self._factor(request_id, source)
        reached, ceiling = 0.0, self._settings.max_probability
        for path in paths:
            probability = 1.0
            for depth, score in enumerate(path):
                probability *= min(ceiling, rates.probability(depth, score, 0, factor))
            reached += probability
        return min(1.0, reached) * rates.level_probability(len(paths[0]), factor)

    def _learn(self, request_id: str, source: str, depth: int, score: float | None, rank: int, accepted: bool) -> None:
        """A token's parent was accepted, and now it is known whether it was."""
        rates, settings = self._rates_of(source), self._settings
        record = self._records.setdefault(request_id, RequestRecord(None))
        own = record.corrections.get(source) or self._kinds.begin(record, source)
        own.variance = min(own.variance + settings.request_drift, record.most_variance[source])
        learn([own], rates.probability(depth, score, rank, own.factor), accepted)
        rates.learn(depth, score, rank, accepted)

    def _rates_of(self, source: str) -> SourceRates:
        rates = self._rates.get(source)
        if rates is None:
            rates = self._rates[source] = SourceRates(self._settings, self._measured(source))
        return rates

    def _factor(self, request_id: str, source: str) -> float:
        """How many times as high as in all requests the odds of a drafter's tokens are in this one."""
        record = self._records.get(request_id)
        if record is None:
            return 1.0
        return (record.corrections.get(source) or self._kinds.begin(record, source)).factor


def _ranks(parents: Sequence[int]) -> Sequence[int]:
    """Of each node among its parent's children, which come best first."""
    children: dict[int, int] = {}
    out: list[int] = []
    for parent in parents:
        out.append(children.get(parent, 0))
        children[parent] = out[-1] + 1
    return out
