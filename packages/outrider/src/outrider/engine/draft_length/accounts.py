"""What the adaptive length keeps of each request: its sources, and what they have cost and earned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.engine.draft_length.acceptance import Correction, SourceAcceptance, ranks_of
from outrider.engine.draft_length.net_loss import Account, DomainStats, Worth
from outrider.engine.request import Request
from outrider.utils.partitioned_store import Handle
from outrider.verify.draft import EMPTY, Draft

__all__ = ["RequestState", "SourceState"]


@dataclass
class SourceState:
    """One of a request's sources."""

    acceptance: SourceAcceptance  # in the domain
    own: Correction  # of the request's acceptance
    accounts: tuple[Account, ...]  # of the request, its class and its domain
    usual: Worth  # of a proposal in the class
    worth: Worth  # and in the request
    asked: bool = False  # in this step, or paused
    proposed: bool = False  # in this step
    started: bool = False  # whether it has proposed for this request before
    cost_s: float = 0.0  # of its proposal and its scored nodes in this step
    rows_s: float = 0.0  # of the nodes alone
    pause: int = 0  # steps in which it is not asked, as it is worth less than it takes

    def spend(self, seconds: float) -> None:
        """Count a scored node."""
        self.cost_s += seconds
        self.rows_s += seconds

    def value(self, gain: float) -> None:
        """Learn that this step's proposal gained so many plain tokens, less what its rows took."""
        self.usual.observe(gain)
        self.worth.observe(gain)
        self.proposed, self.rows_s = False, 0.0


@dataclass
class RequestState:
    """What is known of a request that drafts."""

    sources: dict[str, SourceState]
    handle: Handle[DomainStats]
    lent: float  # plain tokens that the request may lose from the beginning
    awake: bool = True  # whether a source is asked in this step
    rest: int = 0  # steps in which no source can be afforded yet
    rested: int = 0  # tokens of steps in which none was asked, which its accounts do not know of yet
    proposed: Draft = EMPTY
    priors: Sequence[float] = ()  # of the proposed nodes: their probabilities if nothing had been learned

    def source(self, name: str) -> SourceState:
        """Whose a node is; one that names none of them counts for the first."""
        return self.sources.get(name) or next(iter(self.sources.values()))

    @property
    def asked(self) -> bool:
        """Whether any source is asked in this step."""
        return any(source.asked for source in self.sources.values())

    def rest_for(self, steps: int, request: Request) -> None:
        """Ask no source for some steps. Tokens that a form forces need room all the same."""
        self.rest, self.awake = steps, False
        request.drafts.resting = steps > 0 and request.constraint is None

    def wake(self) -> None:
        """Record what was decoded while nobody could be asked."""
        self.awake = True
        if self.rested:
            self.record(self.rested, 1.0)
            self.rested = 0

    def record(self, tokens: int, token_s: float) -> None:
        """Record so many decoded tokens, of ``token_s`` seconds each without drafts, and what drafting cost."""
        share = tokens / len(self.sources)
        for source in self.sources.values():
            for account in source.accounts:
                account.record(share, source.cost_s / token_s)
            source.cost_s = 0.0

    # -- acceptance -------------------------------------------------------------------------------------------------

    def priors_of(self, draft: Draft) -> list[float]:
        """Of each node to be accepted if its parent is, as far as its source says."""
        scores: Sequence[float | None] = draft.scores or [None] * len(draft)
        ranks = [0] * len(draft) if draft.scores else ranks_of(draft.parents)
        return [
            self.source(draft.source_of(node)).acceptance.prior(depth, score, rank)
            for node, (depth, score, rank) in enumerate(zip(draft.depths, scores, ranks, strict=True))
        ]

    def probabilities(self, draft: Draft, priors: Sequence[float]) -> list[float]:
        """Of each node to be on the accepted path: the product along its path."""
        out: list[float] = []
        for node, (parent, prior) in enumerate(zip(draft.parents, priors, strict=True)):
            source = self.source(draft.source_of(node))
            own = source.acceptance.token(prior, source.own)
            out.append(own if parent < 0 else own * out[parent])
        return out

    def learn(self, committed: Sequence[int]) -> None:
        """Compare the step's proposal with the tokens that were committed instead or because of it."""
        draft, self.proposed = self.proposed, EMPTY
        right = {-1}  # nodes on the path of the committed tokens
        levels: dict[tuple[str, int], bool] = {}  # by source: whether it had the right token there, behind a right one
        for node, parent in enumerate(draft.parents):
            depth = draft.depths[node]
            if parent not in right or depth >= len(committed):
                continue
            accepted = draft.tokens[node] == committed[depth]
            if accepted:
                right.add(node)
            name = draft.source_of(node)
            source = self.source(name)
            source.acceptance.learn(self.priors[node], source.own, accepted)
            levels[name, depth] = accepted or levels.get((name, depth), False)
        for (name, depth), found in levels.items():
            source = self.source(name)
            source.acceptance.learn_level(depth, source.own, found)
