"""The adaptive draft length: the most tokens a second that measured costs and acceptance promise, within a bound.

For requests with ``spec_length="auto"``. Each step, for all requests together (docs/algorithms/adaptive.md):

1. A source is asked if what it takes can be lost without breaking the bound of ``net_loss`` (``asking``).
2. Sources that take time for each level go on while the next is expected to save more than it takes.
3. Of the nodes they propose, the likeliest are scored, as many as pay and as the bound allows (``selection``).

All three only choose which rows are scored; under matching verification no output depends on that. What is learned
from texts is kept apart for each domain (``DomainStats``); the costs of the machine are common to all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from outrider.engine.draft_length.acceptance import Correction, Measured, nothing_measured
from outrider.engine.draft_length.accounts import RequestState, SourceState
from outrider.engine.draft_length.asking import Asking, StepPrices, tokens_read
from outrider.engine.draft_length.cost import StepCost
from outrider.engine.draft_length.net_loss import CAPACITY, DomainStats, RequestClass, Worth
from outrider.engine.draft_length.own_time import OwnTime
from outrider.engine.draft_length.policy import DraftLength, ProposalCost
from outrider.engine.draft_length.selection import Proposal, least_probability, select_nodes
from outrider.engine.draft_length.settings import DEFAULT_SETTINGS, DraftLengthSettings
from outrider.engine.draft_length.source_times import DraftingCostOf, SourceTimes, no_encoder
from outrider.engine.request import Request
from outrider.models.experts import ExpertReads
from outrider.utils.partitioned_store import PartitionedStore
from outrider.verify.draft import EMPTY, Draft

_GUESSED_WORTH = 4  # proposals that the class's worth stands for in a new request


class AdaptiveLength(DraftLength):
    """The ``DraftLength`` of an engine: it decides for adaptive requests, and others get what they ask for."""

    def __init__(
        self,
        calibrate: Callable[[], StepCost],
        settings: DraftLengthSettings = DEFAULT_SETTINGS,
        measured: Measured = nothing_measured,
        drafting_cost: DraftingCostOf = no_encoder,
    ) -> None:
        """``calibrate`` and ``drafting_cost`` are called when the first adaptive request drafts, or before."""
        self._calibrate, self._settings = calibrate, settings
        self._cost: StepCost | None = None
        self._prompt: ExpertReads | None = None  # the last one; the first comes before the calibration
        self._requests: dict[str, RequestState] = {}
        self._measured = measured
        self.forget_texts()
        self._times = SourceTimes(settings.weight, drafting_cost)
        self._asking = Asking(settings, self._times)
        self._charged_s = 0.0  # that this step's drafts take, as far as is known
        self._proposing_s = 0.0  # in this step, by sources
        self._asked, self._drafted = 0, 0  # in this step: proposals, and requests with a draft that is scored
        self._own_time = OwnTime(settings)

    def forget_texts(self) -> None:
        self._learned = PartitionedStore(lambda: DomainStats(self._settings, self._measured), CAPACITY)

    @property
    def request_ids(self) -> frozenset[str]:
        """Requests that it keeps statistics of."""
        return frozenset(self._requests)

    def calibrate(self, sources: Sequence[str] = ()) -> None:
        """Measure T(n), and what drafts of ``sources`` take, unless that has been done."""
        if self._cost is None:
            self._cost = self._calibrate()
            if self._prompt is not None:
                self._cost.observe_text(self._prompt)
        for name in sources:
            self._times.time_encoder(name)

    @property
    def cost(self) -> StepCost:
        self.calibrate()
        assert self._cost is not None
        return self._cost

    def pass_seconds(self, rows: int, context: int) -> float:
        return self.cost.pass_seconds([rows], [context])

    # -- before and while drafting ----------------------------------------------------------------------------------

    def budget(self, requests: Sequence[Request], granted: Sequence[int]) -> list[int]:
        """Nodes to ask each request's sources for: all that is granted, or none where all of them are paused."""
        self._proposing_s, self._asked, self._drafted = 0.0, 0, 0
        budgets, awake = list(granted), list[int]()
        for i, request in enumerate(requests):
            known = self._requests.get(request.id)
            if known is not None and known.rest:
                known.rest -= 1
                if not known.rest:
                    request.drafts.resting = False
                budgets[i] = 0
            elif request.adaptive and granted[i] > 0:
                awake.append(i)
            elif known is not None:
                known.rest_for(0, request)
                budgets[i] = 0
        if awake:
            prices = self._asking.prices = self._price(requests, [requests[i] for i in awake])
            promised_s = 0.0
            for i in awake:
                known = self._requests[requests[i].id]
                promised_s += self._asking.decide(requests[i], known, prices.room_s - promised_s)
                if not known.asked:
                    budgets[i] = 0
        return budgets

    def _price(self, requests: Sequence[Request], awake: Sequence[Request]) -> StepPrices:
        """The prices of a step; begins with requests that are new."""
        plain_s = self.cost.plain([request.num_computed_tokens for request in requests])
        for request in awake:
            known = self._requests.get(request.id)
            if known is None:
                known = self._start(request)
                self._own_time.lend(request.id, known.lent)
            known.wake()
        least_s = self._own_time.least_s(requests, plain_s)
        poor = 1.0 - least_s / (self._settings.credit * plain_s)
        margin = 1.0 + (self._settings.margin - 1.0) * poor
        return StepPrices(self.cost, len(requests), plain_s, self._settings.at_once * least_s, margin)

    def asks(self, request: Request, source: str, drafts: Sequence[Draft]) -> bool:
        known = self._requests.get(request.id)
        return known is None or self._asking.asks(known, source, drafts)

    def cost_per_level(self, source: str) -> float:
        return self._times.level(source)

    def should_continue(self, request: Request, source: str, paths: Sequence[Sequence[float]]) -> bool:
        known = self._requests.get(request.id)
        return known is None or self._asking.should_continue(known, source, paths)

    def observe_proposals(self, request: Request, costs: Mapping[str, ProposalCost]) -> None:
        """Learn what each source's proposal cost, and charge it as what such proposals take.

        Its first for a request, when a draft model reads the prompt, says nothing about the next ones. The first of
        all, when code is loaded, is not charged: it says nothing of any other.
        """
        self._proposing_s += sum([cost.seconds for cost in costs.values()])
        self._asked += len(costs)
        known = self._requests.get(request.id)
        if known is None:
            return
        for name, cost in costs.items():
            source, levels, read_s = known.source(name), max(1, cost.levels), 0.0
            source.proposed = True
            if source.started:
                counted = self._times.observe(name, cost.seconds, levels)
            else:  # it reads at the expense of the domain, which lends it to the request
                counted, read_s = self._times.observe_first(name, cost.seconds, levels, tokens_read(request))
                for account in source.accounts[:-1]:
                    account.left += read_s / self._asking.prices.token_s
                source.started = True
            counted += self.cost.asking
            source.cost_s += counted + read_s
            self._charged_s += counted

    # -- after drafting ---------------------------------------------------------------------------------------------

    def select(
        self, requests: Sequence[Request], drafts: Sequence[Draft], num_tokens: Sequence[int], budgets: Sequence[int]
    ) -> list[Draft]:
        """The nodes worth scoring; drafts of requests that are not adaptive stay whole."""
        selected, fixed, adaptive = list(drafts), list(num_tokens), list[int]()
        for i, (request, draft) in enumerate(zip(requests, drafts, strict=True)):
            if draft and request.adaptive:
                selected[i] = EMPTY
                adaptive.append(i)
            else:
                fixed[i] += len(draft)
        proposals = self._proposals(requests, drafts, budgets, adaptive, alone=sum(fixed) == len(requests))
        if proposals:
            contexts, prices = [request.num_computed_tokens for request in requests], self._asking.prices
            room_s = max(0.0, prices.room_s - self._settings.at_once * self._charged_s)
            chosen = select_nodes(proposals, fixed, contexts, self.cost, room_s, prices.margin)
            for i, nodes in chosen.items():
                selected[i] = drafts[i].only(list(nodes))
                for node, seconds in nodes.items():
                    self._requests[requests[i].id].source(drafts[i].source_of(node)).spend(seconds)
                    self._charged_s += seconds
        self._own_time.charge(self._charged_s)
        self._charged_s = 0.0
        self._drafted = len(selected) - selected.count(EMPTY)
        return selected

    def _proposals(
        self,
        requests: Sequence[Request],
        drafts: Sequence[Draft],
        budgets: Sequence[int],
        adaptive: Sequence[int],
        *,
        alone: bool,
    ) -> dict[int, Proposal]:
        """The drafts of ``adaptive`` requests of which a node may be worth scoring; all are learned from.

        ``alone``: the step has one row for each request beside them.
        """
        least, found = 0.0, dict[int, Proposal]()
        if alone and adaptive:
            contexts, prices = [request.num_computed_tokens for request in requests], self._asking.prices
            least = least_probability(self.cost, contexts, prices.plain_s, prices.margin)
        for i in adaptive:
            known = self._requests[requests[i].id]
            known.proposed, known.priors = drafts[i], known.priors_of(drafts[i])
            probabilities = known.probabilities(drafts[i], known.priors)
            if max(probabilities) > least:
                affordable_s = {name: self._asking.affordable_s(source) for name, source in known.sources.items()}
                found[i] = Proposal(drafts[i], probabilities, budgets[i], affordable_s)
        return found

    def observe_forward_pass(
        self, requests: Sequence[Request], drafts: Sequence[Draft], seconds: float, experts: int = 0
    ) -> None:
        """Correct T(n), once it has been measured."""
        if self._cost is not None:
            contexts = [request.num_computed_tokens for request in requests]
            self._cost.observe_pass([1 + len(draft) for draft in drafts], contexts, seconds, experts)

    def observe_prompt(self, reads: ExpertReads) -> None:
        self._prompt = reads
        if self._cost is not None:
            self._cost.observe_text(reads)

    def observe_step(self, requests: int, seconds: float) -> None:
        """Learn what a step takes beside the forward pass and the proposals, and what scoring a draft adds to that."""
        if self._cost is not None:
            self._cost.observe_outside(requests, self._asked, self._drafted, seconds - self._proposing_s)

    def observe(self, request: Request, committed: Sequence[int], draft: Draft, path: Sequence[int]) -> None:
        """Learn which nodes of the proposal were right, scored or not, and what the accepted ones saved."""
        prices = self._asking.prices
        if path:
            self._own_time.saved(request.id, len(path), prices.plain_s)
        known = self._requests.get(request.id)
        if known is None:
            return
        if not known.awake:
            known.rested += len(committed)
            return
        self._asking.learn_worth(known, draft, path)
        for node in path:
            known.source(draft.source_of(node)).cost_s -= prices.token_s
        known.record(len(committed), prices.token_s)
        if known.proposed:
            known.learn(committed)

    def finish(self, request_id: str) -> None:
        self._own_time.finish(request_id)
        known = self._requests.pop(request_id, None)
        if known is not None:
            known.wake()
            self._learned.close(known.handle)

    # -- helpers ----------------------------------------------------------------------------------------------------

    def _start(self, request: Request) -> RequestState:
        handle = self._learned.open(request.cache_salt, request.tenant)
        names, sources = request.speculation.combination.names, dict[str, SourceState]()
        variance = self._settings.request_variance  # which does not fall: a request's last tokens decide
        lent = 0.0
        for name in names:
            loan = handle.store.source(name, RequestClass.of(request), 1 / len(names), request.params.max_tokens)
            own = Correction(variance, variance)
            worth = Worth(loan.worth.mean, _GUESSED_WORTH)
            sources[name] = SourceState(loan.acceptance, own, loan.accounts, loan.worth, worth)
            lent += loan.lent
        known = self._requests[request.id] = RequestState(sources, handle, lent)
        return known
