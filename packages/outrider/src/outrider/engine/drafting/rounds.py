"""Asks draft sources in rounds: a request without a draft after one round asks its next group of sources."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from outrider.config.combination import Group
from outrider.drafters.api import Drafter, Outcome
from outrider.drafters.merge import combine
from outrider.drafters.text.grammar import forced_tokens
from outrider.engine.draft_length.policy import DraftLength, ProposalCost
from outrider.engine.drafting.features import FeatureRouting
from outrider.engine.drafting.isolation import IsolatedDrafters
from outrider.engine.drafting.ranking import Ranking
from outrider.engine.pace import DraftTime
from outrider.engine.request import Request
from outrider.verify.draft import EMPTY, Draft


@dataclass
class DraftJob:
    """The draft of one request under construction: the groups of sources to ask, and their proposals."""

    request: Request
    budget: int
    groups: Iterator[Group]
    group: Group = ()  # asked in this round
    proposals: dict[str, Draft] = field(default_factory=dict)  # in this round, by drafter
    costs: dict[str, ProposalCost] = field(default_factory=dict)  # in all rounds
    draft: Draft = EMPTY

    def advance(self) -> bool:
        """Go on to the next group; returns whether there is one."""
        self.group, self.proposals = next(self.groups, ()), {}
        return bool(self.group)


class Drafting:
    """Asks the drafters of each request, and merges their proposals into one draft.

    Drafters that fail are switched off and the others go on (``isolation``); a policy decides how much is drafted
    (``engine.draft_length``).
    """

    def __init__(
        self,
        drafters: Mapping[str, Drafter],
        vocab_size: int,
        policy: DraftLength,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.vocab_size = vocab_size
        self.policy, self._clock = policy, clock
        self._rankings: dict[str, Ranking] = {}  # of requests that want the best of several
        self.time = DraftTime(clock)
        self.use(drafters)

    def use(self, drafters: Mapping[str, Drafter]) -> None:
        """Draft with these drafters from now on; no request is running."""
        self.isolated = IsolatedDrafters(drafters, self.vocab_size, self._clock)
        self.features = FeatureRouting(self.isolated)

    def start(self, request: Request) -> None:
        """A request has been admitted."""
        combination = request.speculation.combination
        if combination.best:
            self._rankings[request.id] = Ranking(combination.groups)
        request.pace = self
        self.isolated.start(request)

    def propose(self, requests: Sequence[Request], granted: Sequence[int], num_tokens: Sequence[int]) -> list[Draft]:
        """A draft per request of at most ``granted[i]`` nodes; may be empty.

        Each round asks every drafter once, for all its requests: in the first round the first group of every request's
        combination, then the next group of requests still without a draft. Then the policy selects the nodes worth
        scoring, given the ``num_tokens`` rows of each request.
        """
        if not requests:
            return []
        budgets = self.policy.budget(requests, granted)
        for request, budget in zip(requests, budgets, strict=True):
            request.drafts.budget, request.drafts.num_proposed = budget, 0
        if not any(budgets):
            return [fill_forced_tokens(request, EMPTY, room) for request, room in zip(requests, granted, strict=True)]
        jobs = [
            DraftJob(request, budget, self._groups(request))
            for request, budget in zip(requests, budgets, strict=True)
            if budget > 0
        ]
        waiting = jobs
        while waiting := [job for job in waiting if job.advance()]:
            self._ask(waiting)
            for job in waiting:
                job.draft = self._merge(job)
            waiting = [job for job in waiting if not job.draft]
        for job in jobs:
            job.request.drafts.num_proposed = len(job.draft)
            if job.costs:
                job.request.stats.draft_s += sum(cost.seconds for cost in job.costs.values())
                self.policy.observe_proposals(job.request, job.costs)
        drafts = {job.request.id: job.draft for job in jobs}
        proposed = [drafts.get(request.id, EMPTY) for request in requests]
        selected = self.policy.select(requests, proposed, num_tokens, budgets)
        return [
            fill_forced_tokens(request, draft, room)
            for request, draft, room in zip(requests, selected, granted, strict=True)
        ]

    @property
    def seconds_left(self) -> float:
        """Seconds left for drafting in this step; infinite if no other tenant waits."""
        return self.time.left()

    def should_continue(self, request: Request, source: str, paths: Sequence[Sequence[float]]) -> bool:
        """Whether a draft may grow: time is left, and for an adaptive request the policy expects a gain."""
        if not self.time.has_level(request.id):
            return False
        return not request.adaptive or self.policy.should_continue(request, source, paths)

    def observe(self, outcome: Outcome, request: Request) -> None:
        """Report a draft's outcome to the policy and, while the request continues, to its drafters."""
        self.policy.observe(request, outcome.committed, outcome.draft, outcome.verdict.path)
        if request.finish_reason is not None:
            return
        if request.id in self._rankings:
            self._rankings[request.id].observe(len(outcome.verdict.path))
        self.isolated.observe(request, outcome)

    def finish(self, request: Request) -> None:
        """The request has ended or was preempted: release its resources. Does nothing without a start."""
        self.policy.finish(request.id)
        self._rankings.pop(request.id, None)
        request.pace = None
        self.isolated.finish(request)

    def _groups(self, request: Request) -> Iterator[Group]:
        ranking = self._rankings.get(request.id)
        return iter(request.speculation.combination.groups if ranking is None else ranking.order())

    def _ask(self, jobs: Sequence[DraftJob]) -> None:
        """Ask the drafters of every request's current group, each once for all its requests.

        Cheap drafters run first; an expensive drafter is skipped if their proposals are confident enough.
        """
        asked: dict[str, list[tuple[DraftJob, int]]] = {}
        for job in jobs:
            request = job.request
            for name in job.group:
                if name not in request.drafts.disabled_sources:
                    asked.setdefault(name, []).append((job, min(job.budget, request.nodes_by(name))))
        for name in sorted(asked, key=self.policy.cost_per_level):
            wanting = [
                (job, budget)
                for job, budget in asked[name]
                if self.policy.asks(job.request, name, list(job.proposals.values()))
            ]
            if wanting and self.time.left() > 0:
                self._ask_one(name, [job for job, _ in wanting], [budget for _, budget in wanting])

    def _ask_one(self, name: str, jobs: Sequence[DraftJob], budgets: Sequence[int]) -> None:
        """Record a drafter's proposal for each request, and its cost."""
        began = self._clock()
        drafts = self.isolated.propose(name, [job.request for job in jobs], budgets)
        seconds = (self._clock() - began) / len(jobs)
        for job in jobs:
            draft = drafts.get(job.request.id)
            if draft is not None:
                job.proposals[name] = draft
            levels = 1 + max(draft.depths) if draft else 0
            job.costs[name] = ProposalCost(seconds, levels)

    def _merge(self, job: DraftJob) -> Draft:
        draft = merge_proposals(job.request, job.group, job.proposals, job.costs, job.budget)
        if draft and job.request.id in self._rankings:
            self._rankings[job.request.id].asked(job.group)
        return draft


def fill_forced_tokens(request: Request, draft: Draft, room: int) -> Draft:
    """The draft, or the tokens that the request's grammar forces if the draft does not begin with them.

    Exact under every verifier: the replaced draft had no acceptable token, and the forced tokens, which depend on no
    noise, are accepted with certainty.
    """
    if request.constraint is None or room == 0:
        return draft
    tokens = forced_tokens(request.constraint, request.output, min(room, request.depth_limit))
    roots = (token for token, parent in zip(draft.tokens, draft.parents, strict=True) if parent < 0)
    return Draft.chain(tokens, source="grammar") if tokens and tokens[0] not in roots else draft


def merge_proposals(
    request: Request, group: Group, proposals: Mapping[str, Draft], costs: Mapping[str, ProposalCost], budget: int
) -> Draft:
    """The group's proposals in one tree of at most ``budget`` nodes; the first proposal if the verifier takes chains.

    For an adaptive request, ``budget`` is per proposal, because its policy then selects the best nodes, and a node that
    several drafters proposed is credited to the cheapest.
    """
    if request.adaptive and request.verifier.takes_trees:
        group = tuple(sorted(group, key=lambda name: _milliseconds(costs.get(name))))
    drafts = [draft for name in group if (draft := proposals.get(name))]
    if request.adaptive:
        budget *= len(drafts)
    return combine(drafts if request.verifier.takes_trees else drafts[:1], budget)


def _milliseconds(cost: ProposalCost | None) -> float:
    """The cost rounded to milliseconds, so that noise does not order drafters of equal cost."""
    return round(cost.seconds if cost else 0.0, 3)
