"""The adaptive draft length: the most tokens a second that measured costs and acceptance promise, within a bound.

For requests with ``spec_length="auto"``. Each step, for all requests together (docs/algorithms/adaptive.md):

1. A source is asked if what it takes can be lost without breaking the bound of ``net_loss``.
2. Sources that take time for each level go on while the next is expected to save more than it takes.
3. Of the nodes they propose, the likeliest are scored, as many as pay and as the bound allows (``selection``).

All three only choose which rows are scored; under matching verification no output depends on that. What is learned
from texts is kept apart for each domain (``DomainStats``); the costs of the machine are common to all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from outrider.drafters.cost import DraftingCost
from outrider.engine.draft_length.acceptance import Correction, Measured, nothing_measured
from outrider.engine.draft_length.accounts import RequestState, SourceState
from outrider.engine.draft_length.cost import StepCost
from outrider.engine.draft_length.net_loss import CAPACITY, DomainStats, RequestClass, Worth
from outrider.engine.draft_length.own_time import OwnTime
from outrider.engine.draft_length.policy import DraftLength, ProposalCost
from outrider.engine.draft_length.row_counts import ROWS
from outrider.engine.draft_length.selection import Proposal, least_probability, select_nodes
from outrider.engine.draft_length.settings import DEFAULT_SETTINGS, DraftLengthSettings
from outrider.engine.draft_length.source_times import DraftingCostOf, SourceTimes, no_encoder
from outrider.engine.request import Request
from outrider.models.experts import ExpertReads
from outrider.utils.partitioned_store import PartitionedStore
from outrider.verify.draft import EMPTY, Draft

_GUESSED_WORTH = 4  # proposals that the class's worth stands for in a new request
_LONGEST_REST = 16  # steps, in which what drafts cost may change, or another request may earn for all


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
        self._token_s = 0.0  # seconds that a token costs without drafts in this step
        self._plain_s = 0.0  # of this step without drafts
        self._margin = 1.0
        self._room_s = 0.0  # that this step's drafts may take from all of its requests
        self._charged_s = 0.0  # that they take, as far as is known
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
        self._proposing_s, self._asked, self._drafted, self._token_s = 0.0, 0, 0, 0.0
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
            self._price(requests, [requests[i] for i in awake])
            promised_s = 0.0
            for i in awake:
                promised_s += self._ask(requests[i], len(requests), self._room_s - promised_s)
                if not any(source.asked for source in self._requests[requests[i].id].sources.values()):
                    budgets[i] = 0
        return budgets

    def _price(self, requests: Sequence[Request], awake: Sequence[Request]) -> None:
        """What this step takes without drafts, and what its drafts may take; begins with requests that are new."""
        self._plain_s = self.cost.plain([request.num_computed_tokens for request in requests])
        self._token_s = self._plain_s / len(requests)
        for request in awake:
            known = self._requests.get(request.id)
            if known is None:
                known = self._start(request)
                self._own_time.lend(request.id, known.lent)
            known.wake()
        least_s = self._own_time.least_s(requests, self._plain_s)
        self._room_s = self._settings.at_once * least_s
        poor = 1.0 - least_s / (self._settings.credit * self._plain_s)
        self._margin = 1.0 + (self._settings.margin - 1.0) * poor

    def _ask(self, request: Request, together: int, room_s: float) -> float:
        """Decide which sources of a request are asked; the seconds that their proposals are expected to take."""
        known, promised_s = self._requests[request.id], 0.0
        row_s = self.cost.row(together, 1, request.num_computed_tokens) + self.cost.drafting
        for name, source in known.sources.items():
            taken_s = self._proposal_s(name)
            source.pause -= 1
            source.asked = (
                source.pause < 0
                and promised_s + taken_s + row_s <= room_s
                and self._can_ask(request, name, source, together, row_s)
            )
            promised_s += taken_s if source.asked else 0.0
        if not promised_s and not any(source.asked for source in known.sources.values()):
            known.rest_for(self._steps_to_rest(known, row_s), request)
            for source in known.sources.values():
                source.pause -= known.rest
        return promised_s

    def _steps_to_rest(self, known: RequestState, row_s: float) -> int:
        """Steps in which no source can be asked yet, if each decodes a token: to ask costs time too, in every step."""
        share = self._settings.at_once * self._settings.loss_share
        steps = list[float]()
        for name, source in known.sources.items():
            taken_s = self._proposal_s(name) + row_s
            missing = (taken_s - self._affordable_s(source)) / (share / len(known.sources) * self._token_s)
            steps.append(max(source.pause, missing - 1, (taken_s - self._room_s) / (share * self._plain_s) - 1))
        return max(0, min(_LONGEST_REST, math.ceil(min(steps))))

    def asks(self, request: Request, source: str, drafts: Sequence[Draft]) -> bool:
        """Whether it can be afforded, and the tokens it may add where ``drafts`` are likely to fail save more time than
        it takes."""
        known, level = self._requests.get(request.id), self._times.level(source)
        if known is None:
            return True
        own, next_token = known.sources[source], dict[int, float]()
        if not own.asked or not level or not any(drafts):
            return own.asked
        for draft in drafts:
            found = known.probabilities(draft, known.priors_of(draft))
            for token, parent, probability in zip(draft.tokens, draft.parents, found, strict=True):
                if parent < 0:
                    next_token[token] = max(probability, next_token.get(token, 0.0))
        uncovered = 1.0 - min(1.0, sum(next_token.values()))
        return uncovered * own.acceptance.level([()], own.own) * self._token_s > level

    def cost_per_level(self, source: str) -> float:
        return self._times.level(source)

    def should_continue(self, request: Request, source: str, paths: Sequence[Sequence[float]]) -> bool:
        """Whether a level more is affordable and expected to save more time than it takes; ``select`` judges rows."""
        known, level = self._requests.get(request.id), self._times.level(source)
        if known is None:
            return True
        self._times.grows(source)
        own, levels = known.sources[source], len(paths[0])
        if not level:
            return levels < 2  # nobody knows yet what one takes
        if (levels + 1) * level > self._affordable_s(own):
            return False
        return own.acceptance.level(paths, own.own) * self._token_s > level

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
                counted, read_s = self._times.observe_first(name, cost.seconds, levels, _tokens_read(request))
                for account in source.accounts[:-1]:
                    account.left += read_s / self._token_s
                source.started = True
            counted += self.cost.asking
            source.cost_s += counted + read_s
            self._charged_s += counted

    # -- after drafting ---------------------------------------------------------------------------------------------

    def select(
        self, requests: Sequence[Request], drafts: Sequence[Draft], num_tokens: Sequence[int], budgets: Sequence[int]
    ) -> list[Draft]:
        """The nodes worth scoring; drafts of requests that are not adaptive stay whole."""
        selected, fixed = list(drafts), list(num_tokens)
        for i, (request, draft) in enumerate(zip(requests, drafts, strict=True)):
            if draft and not request.adaptive:
                fixed[i] += len(draft)
        least, proposals = 0.0, dict[int, Proposal]()
        if sum(fixed) == len(requests):
            contexts = [request.num_computed_tokens for request in requests]
            least = least_probability(self.cost, contexts, self._plain_s, self._margin)
        for i, (request, draft) in enumerate(zip(requests, drafts, strict=True)):
            if draft and request.adaptive:
                selected[i] = EMPTY
                known = self._requests[request.id]
                known.proposed, known.priors = draft, known.priors_of(draft)
                found = known.probabilities(draft, known.priors)
                if max(found) > least:
                    affordable_s = {name: self._affordable_s(source) for name, source in known.sources.items()}
                    proposals[i] = Proposal(draft, found, budgets[i], affordable_s)
        if proposals:
            contexts = [request.num_computed_tokens for request in requests]
            room_s = max(0.0, self._room_s - self._settings.at_once * self._charged_s)
            chosen = select_nodes(proposals, fixed, contexts, self.cost, room_s, self._margin)
            for i, nodes in chosen.items():
                selected[i] = drafts[i].only(list(nodes))
                for node, seconds in nodes.items():
                    self._requests[requests[i].id].source(drafts[i].source_of(node)).spend(seconds)
                    self._charged_s += seconds
        self._own_time.charge(self._charged_s)
        self._charged_s = 0.0
        self._drafted = len(selected) - selected.count(EMPTY)
        return selected

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
        if path:
            self._own_time.saved(request.id, len(path), self._plain_s)
        known = self._requests.get(request.id)
        if known is None:
            return
        if not known.awake:
            known.rested += len(committed)
            return
        self._value(known, draft, path)
        for node in path:
            known.source(draft.source_of(node)).cost_s -= self._token_s
        known.record(len(committed), self._token_s or 1.0)
        if known.proposed:
            known.learn(committed)

    def _value(self, known: RequestState, draft: Draft, path: Sequence[int]) -> None:
        """Learn what asking each source was worth; one that is worth less than it takes is asked less often."""
        for name, source in known.sources.items():
            if source.proposed:
                saved = sum(known.source(draft.source_of(node)) is source for node in path)
                source.value(saved - source.rows_s / self._token_s)
                short = self._proposal_s(name) / self._token_s - source.worth.mean
                source.pause = min(_LONGEST_REST, math.ceil(max(0.0, short) / self._settings.looking)) - 1

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

    def _affordable_s(self, source: SourceState) -> float:
        """Seconds that the source may spend next in this step: a share of what its accounts and the step leave it.

        A source that spent all on a proposal could score none of it.
        """
        left_s = min([account.left for account in source.accounts]) * self._token_s
        return self._settings.at_once * (left_s - source.cost_s)

    def _proposal_s(self, name: str) -> float:
        """That asking a source takes at least, as far as is known."""
        return self._times.proposal(name) + self.cost.asking

    def _can_ask(self, request: Request, name: str, source: SourceState, together: int, row_s: float) -> bool:
        """Whether a proposal and a scored node of it can be afforded, and before the first one what it reads too.

        ``row_s``: seconds that scoring a first node adds.
        """
        if self._proposal_s(name) + row_s > self._affordable_s(source):
            return False
        if source.started:
            return True
        if request.input.positions:
            self.calibrate([name])
        encoder, reading = self._times.encoder(name), self._times.reading(name)
        if reading is not None and _tokens_read(request) * reading > source.accounts[-1].left * self._token_s:
            return False
        return encoder is None or not request.input.positions or self._can_pay(request, encoder, together)

    def _can_pay(self, request: Request, encoder: DraftingCost, together: int) -> bool:
        """Whether drafts that are always right save what their encoder takes, in half of the tokens there may be."""
        levels = [n - 1 for n in ROWS if 1 < n <= 1 + request.depth_limit]
        context = [request.num_computed_tokens] * together
        step_s = [self.cost.pass_seconds([1 + n] * together, context) + n * encoder.level for n in levels]
        outside_s = self.cost.outside(together) + self.cost.drafting * together
        fastest = min([(seconds + outside_s) / (1 + n) / together for n, seconds in zip(levels, step_s, strict=True)])
        tokens = min(request.params.max_tokens, request.max_seq_len - request.prompt_length) / 2
        return tokens * (self._token_s - fastest) > encoder.reading(request.input)


def _tokens_read(request: Request) -> int:
    """That a source may have to read before its first proposal."""
    return request.input.positions or len(request.tokens)
