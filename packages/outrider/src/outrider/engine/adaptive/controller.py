"""The adaptive draft length: the most tokens per second, from measured costs and running acceptance.

For requests with ``spec_length="auto"``. Each step, for all requests together (docs/algorithms/adaptive.md):

1. Before drafting, drafters that have recently lost time for a request are paused, and tried again after a while. A
   drafter that has lost time over all requests of a kind is not started for another until the loss is small beside
   the time that has passed.
2. While drafting, cheap drafters run first; expensive ones are skipped when those are already confident; drafters that
   take time for each level ask whether another is likely to pay (``RequestView.should_continue``).
3. Of the nodes they propose, the likeliest are scored, as many as pay (``engine.adaptive.selection``).

All three only choose which rows are scored. Under matching verification no output depends on that. What is learned
from texts is kept apart for each domain (``Experience``); the costs of the machine are common to all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from outrider.engine.adaptive.acceptance import Measured, nothing_measured
from outrider.engine.adaptive.break_even import CostOf, EncoderCosts, most_saved, no_encoder
from outrider.engine.adaptive.cost import ForwardPassCost
from outrider.engine.adaptive.experience import CAPACITY, Experience
from outrider.engine.adaptive.kinds import Kind
from outrider.engine.adaptive.overhead import StepOverhead
from outrider.engine.adaptive.selection import Proposal, select_nodes
from outrider.engine.adaptive.settings import DEFAULT_SETTINGS, AdaptiveSettings
from outrider.engine.adaptive.statistics import ProposalCost, RequestStatistics, SourceStatistics
from outrider.engine.request import Request
from outrider.utils.partitioned_store import Handle, PartitionedStore
from outrider.verify.draft import EMPTY, Draft


class AdaptiveLength:
    """The ``DraftLengthPolicy`` of an engine: it decides for adaptive requests, and others get what they ask for."""

    def __init__(
        self,
        calibrate: Callable[[], ForwardPassCost],
        settings: AdaptiveSettings = DEFAULT_SETTINGS,
        measured: Measured = nothing_measured,
        cost_of: CostOf = no_encoder,
    ) -> None:
        """``calibrate`` and ``cost_of`` are called when the first adaptive request drafts, or before."""
        self._measure = calibrate
        self._settings = settings
        self._forward_pass: ForwardPassCost | None = None
        self._encoders = EncoderCosts(cost_of)
        self._requests: dict[str, RequestStatistics] = {}
        self._learned = PartitionedStore(lambda: Experience(settings, measured), CAPACITY)
        self._handles: dict[str, Handle[Experience]] = {}  # by request
        self._overhead = StepOverhead(settings)
        self._proposing = 0.0  # seconds that drafters took in this step
        self._drafted = 0  # requests with a draft that is scored in it
        self._plain_steps = 0  # in which nothing was scored but last tokens
        self._token, self._batch = 0.0, 0  # seconds that a token costs without drafts, with so many requests
        self._level: dict[str, float] = {}  # seconds that a drafter takes for a level of a draft

    @property
    def request_ids(self) -> frozenset[str]:
        """Requests that it keeps statistics of."""
        return frozenset(self._requests)

    def calibrate(self, sources: Sequence[str] = ()) -> None:
        """Measure T(n), and what drafts of ``sources`` take, unless that has been done."""
        if self._forward_pass is None:
            self._forward_pass = self._measure()
        for name in sources:
            self._encoders.time(name)

    # -- before drafting --------------------------------------------------------------------------------------------

    def pass_seconds(self, rows: int, context: int) -> float:
        self.calibrate()
        assert self._forward_pass is not None
        return self._forward_pass.seconds([rows], [context])

    def budget(self, requests: Sequence[Request], granted: Sequence[int]) -> list[int]:
        """Nodes to ask each request's drafters for: all that is granted, or none where all of them are paused."""
        self._proposing, self._drafted = 0.0, 0
        budgets: list[int] = []
        asks = False
        for request, room in zip(requests, granted, strict=True):
            budgets.append(self._budget(request, room, requests) if request.adaptive else room)
            asks |= request.adaptive and budgets[-1] > 0
        if asks or (self._forward_pass is not None and len(requests) != self._batch):
            self._batch = len(requests)
            self._token = self._seconds_without_drafts(requests) / self._batch
        return budgets

    def is_paused(self, request: Request, source: str) -> bool:
        statistics = self._requests.get(request.id)
        return request.adaptive and statistics is not None and source not in statistics.active

    # -- while drafting ---------------------------------------------------------------------------------------------

    def cost_per_level(self, source: str) -> float:
        return self._level.get(source, 0.0)

    def is_worth_asking(self, request: Request, source: str, drafts: Sequence[Draft]) -> bool:
        """Whether the tokens it may add where ``drafts`` are likely to fail save more time than it takes."""
        seconds = self._level.get(source)
        if not request.adaptive or seconds is None or not any(drafts):
            return True
        acceptance = self._experience(request).acceptance
        next_token: dict[int, float] = {}  # the probability of each proposed token to be the next one
        for draft in drafts:
            found = acceptance.probabilities(request.id, draft)
            for token, parent, probability in zip(draft.tokens, draft.parents, found, strict=True):
                if parent < 0:
                    next_token[token] = max(probability, next_token.get(token, 0.0))
        uncovered = 1.0 - min(1.0, sum(next_token.values()))
        return uncovered * acceptance.expected_tokens(request.id, source, [()]) * self._token > seconds

    def should_continue(self, request: Request, source: str, paths: Sequence[Sequence[float]]) -> bool:
        """Whether a level more saves more time than it takes; its rows are judged by ``select`` when they are there."""
        if request.id not in self._requests:
            return True
        seconds = self._level.get(source)
        if seconds is None:
            return len(paths[0]) < self._settings.trial_levels
        return self._experience(request).acceptance.expected_tokens(request.id, source, paths) * self._token > seconds

    def observe_proposals(self, request: Request, costs: Mapping[str, ProposalCost]) -> None:
        """Learn what each drafter's proposal cost.

        Its first for a request, when a draft model reads the prompt, says nothing about the next ones: it counts only
        in the drafter's totals.
        """
        self._proposing += sum([cost.seconds for cost in costs.values()])
        statistics = self._requests.get(request.id)
        if not request.adaptive or statistics is None:
            return
        for name, cost in costs.items():
            source, totals, seconds = statistics.sources[name], statistics.totals[name], cost.seconds
            if source.started and cost.levels:
                level, weight = seconds / cost.levels, self._settings.decay
                old = self._level.get(name, level)
                self._level[name] = min(old, level) if totals.is_new else weight * old + (1 - weight) * level
            warm = min(seconds, cost.levels * self._level.get(name, 0.0))
            if not source.started and request.input.positions:
                self._experience(request).record_encoder(name, seconds - warm)
                seconds = warm
            if totals.is_new:  # what it would have taken, had it been warm
                seconds = warm
            totals.record(seconds, self._token)
            source.proposing = seconds if source.started else 0.0
            source.started = True

    # -- after drafting ---------------------------------------------------------------------------------------------

    def select(
        self, requests: Sequence[Request], drafts: Sequence[Draft], num_tokens: Sequence[int], budgets: Sequence[int]
    ) -> list[Draft]:
        """The nodes worth scoring; drafts of requests that are not adaptive stay whole."""
        selected = list(drafts)
        proposals: dict[int, Proposal] = {}
        for i, (request, draft) in enumerate(zip(requests, drafts, strict=True)):
            if request.adaptive and draft:
                self._requests[request.id].proposed = draft
                acceptance = self._experience(request).acceptance
                probabilities = acceptance.probabilities(request.id, draft)
                proposals[i] = Proposal(draft.parents, probabilities, budgets[i])
        self._drafted = len(selected) - selected.count(EMPTY)
        if not proposals:
            return selected
        assert self._forward_pass is not None
        fixed = [n if r.adaptive else n + len(d) for r, d, n in zip(requests, drafts, num_tokens, strict=True)]
        contexts = [request.num_computed_tokens for request in requests]
        nodes = select_nodes(proposals, fixed, contexts, self._forward_pass, self._overhead)
        for i in proposals:
            selected[i] = drafts[i].only(nodes[i]) if i in nodes else EMPTY
        self._drafted = len(selected) - selected.count(EMPTY)
        self._attribute_scoring(requests, fixed, {i: selected[i] for i in nodes})
        for i, chosen in nodes.items():
            self._requests[requests[i].id].expect(selected[i], [proposals[i].probabilities[node] for node in chosen])
        return selected

    def observe_forward_pass(self, requests: Sequence[Request], drafts: Sequence[Draft], seconds: float) -> None:
        """Correct T(n), once it has been measured."""
        if self._drafted == 0:
            self._plain_steps += 1
        if self._is_observed:
            rows, branches = [1 + len(draft) for draft in drafts], [draft.branches for draft in drafts]
            contexts = [request.num_computed_tokens for request in requests]
            assert self._forward_pass is not None
            self._forward_pass.observe(rows, contexts, branches, seconds)

    def observe_step(self, requests: int, seconds: float) -> None:
        """Learn what a step takes beside the forward pass and the proposals, and what scoring a draft adds to that."""
        if self._is_observed:
            self._overhead.observe(requests, self._drafted, seconds - self._proposing)

    def observe(self, request: Request, committed: Sequence[int], draft: Draft, path: Sequence[int]) -> None:
        """Learn which nodes of the proposal were right, scored or not, and what the accepted ones saved."""
        statistics = self._requests.get(request.id)
        if statistics is None:
            return
        statistics.tokens += len(committed)
        if statistics.proposed:
            self._experience(request).acceptance.observe(request.id, statistics.proposed, committed)
        accepted = statistics.count_by_source(draft, path) if path else {}
        for name, source in statistics.sources.items():
            totals, right = statistics.totals[name], accepted.get(name, 0)
            totals.decay_debt(self._token)
            self._experience(request).pay_encoder(
                name, right * self._token - source.scoring - source.proposing, self._token
            )
            if right or source.scoring or source.proposing:
                totals.record(source.scoring - right * self._token, self._token)
                source.record_step(right, self._token, totals)
        statistics.proposed = EMPTY

    def finish(self, request_id: str) -> None:
        statistics = self._requests.pop(request_id, None)
        handle = self._handles.pop(request_id, None)
        if handle is not None:
            if statistics is not None:
                handle.store.record_tokens(statistics.tokens)
            handle.store.acceptance.finish(request_id)
            self._learned.close(handle)

    # -- helpers ----------------------------------------------------------------------------------------------------

    def _experience(self, request: Request) -> Experience:
        """What the request's domain has learned; the request has asked for a budget before."""
        return self._handles[request.id].store

    @property
    def _is_observed(self) -> bool:
        """Whether this step's times are learned from: every one with drafts, and some without, as all are alike."""
        most = self._drafted > 0 or self._plain_steps % self._settings.plain_interval == 0
        return most and self._forward_pass is not None

    def _budget(self, request: Request, room: int, together: Sequence[Request]) -> int:
        if room == 0:
            return 0
        statistics = self._requests.get(request.id)
        if statistics is None:
            statistics = self._start(request)
        totals = statistics.totals
        statistics.active = tuple(  # not paused, and if it has yet to start in its request, that can be afforded
            name
            for name, source in statistics.sources.items()
            if source.pause == 0
            and (source.started or (totals[name].may_start(self._token) and self._may_encode(request, name, together)))
        )
        for source in statistics.sources.values():
            source.pause = max(0, source.pause - 1)
        return room if statistics.active else 0

    def _may_encode(self, request: Request, source: str, together: Sequence[Request]) -> bool:
        """Whether the drafter's encoder, if it has one, is paid for, and can pay again: if all it drafts is right."""
        given, experience = request.input, self._experience(request)
        if not given.positions or not experience.may_encode(source):
            return not given.positions
        self.calibrate()
        assert self._forward_pass is not None
        saved = partial(
            most_saved,
            self._forward_pass,
            self._overhead,
            [r.num_computed_tokens for r in together],
            request.depth_limit,
        )
        most = min(request.params.max_tokens, request.max_seq_len - request.prompt_length)
        tokens = experience.expected_tokens(most) - self._requests[request.id].tokens
        return self._encoders.can_pay(source, given, tokens, saved)

    def _start(self, request: Request) -> RequestStatistics:
        handle = self._handles[request.id] = self._learned.open(request.cache_salt, request.tenant)
        kind, experience = Kind.of(request), handle.store
        experience.acceptance.start(request.id, kind)
        totals = {name: experience.totals_of(kind, name) for name in request.speculation.combination.names}
        sources = {name: SourceStatistics(each.expected_gain) for name, each in totals.items()}
        return self._requests.setdefault(request.id, RequestStatistics(sources, totals))

    def _seconds_without_drafts(self, requests: Sequence[Request]) -> float:
        """Seconds of a step of these requests in plain decoding."""
        self.calibrate()
        assert self._forward_pass is not None
        contexts = [request.num_computed_tokens for request in requests]
        return self._forward_pass.seconds([1] * len(requests), contexts) + self._overhead.plain(len(requests))

    def _attribute_scoring(self, requests: Sequence[Request], fixed: Sequence[int], scored: dict[int, Draft]) -> None:
        """Note what each drafter's scored nodes add to this forward pass."""
        assert self._forward_pass is not None
        contexts = [request.num_computed_tokens for request in requests]
        total = sum(len(draft) for draft in scored.values())
        rows = [n + len(scored.get(i, EMPTY)) for i, n in enumerate(fixed)]
        extra = self._forward_pass.seconds(rows, contexts) - self._forward_pass.seconds(fixed, contexts)
        for i, request in enumerate(requests):
            statistics = self._requests.get(request.id)
            if statistics is not None and request.adaptive:
                own = scored.get(i, EMPTY)
                for name, nodes in statistics.count_by_source(own, range(len(own))).items():
                    together = own.branches * self._forward_pass.branch(contexts[i]) + self._overhead.drafting
                    statistics.sources[name].scoring = nodes * (extra / total + together / len(own))
