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
from outrider.engine.draft_length.acceptance import (
    Correction,
    Measured,
    nothing_measured,
    ranks_of,
)
from outrider.engine.draft_length.accounts import RequestState, SourceState
from outrider.engine.draft_length.cost import StepCost, TypicalSeconds
from outrider.engine.draft_length.net_loss import CAPACITY, DomainStats, RequestClass, Worth
from outrider.engine.draft_length.own_time import OwnTime
from outrider.engine.draft_length.policy import DraftLength, ProposalCost
from outrider.engine.draft_length.row_counts import ROWS
from outrider.engine.draft_length.selection import Proposal, select_nodes
from outrider.engine.draft_length.settings import DEFAULT_SETTINGS, DraftLengthSettings
from outrider.engine.request import Request
from outrider.models.experts import ExpertReads
from outrider.utils.partitioned_store import PartitionedStore
from outrider.verify.draft import EMPTY, Draft

_GUESSED_WORTH = 4  # proposals that the class's worth stands for in a new request
_LONGEST_REST = 16  # steps, in which what drafts cost may change, or another request may earn for all

DraftingCostOf = Callable[[str], DraftingCost | None]
"""By source: what its drafts take, timed now; None: it has no encoder to run."""


def no_encoder(source: str) -> DraftingCost | None:
    """Of sources that read nothing but text."""
    return None


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
        self._calibrate, self._drafting_cost, self._settings = calibrate, drafting_cost, settings
        self._cost: StepCost | None = None
        self._prompt: ExpertReads | None = None  # the last one; the first comes before the calibration
        self._encoders: dict[str, DraftingCost | None] = {}
        self._requests: dict[str, RequestState] = {}
        self._measured = measured
        self.forget_texts()
        self._level: dict[str, TypicalSeconds] = {}  # that a source takes for a level of a draft
        self._proposal: dict[str, TypicalSeconds] = {}  # for a whole one
        self._growing: set[str] = set()  # sources that ask before each level, so that a draft may end after one
        self._reading: dict[str, TypicalSeconds] = {}  # and before its first one, for a token of the prompt
        self._token_s = 0.0  # seconds that a token costs without drafts in this step
        self._plain_s = 0.0  # of this step without drafts
        self._margin = 1.0
        self._room_s = 0.0  # that this step's drafts may take from all of its requests
        self._charged_s = 0.0  # that they take, as far as is known
        self._proposing_s, self._drafted = 0.0, 0  # in this step: by sources; requests with a draft that is scored
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
            if name not in self._encoders:
                self._encoders[name] = self._drafting_cost(name)

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
        self._proposing_s, self._drafted, self._token_s = 0.0, 0, 0.0
        budgets, awake = list(granted), list[int]()
        for i, request in enumerate(requests):
            known = self._requests.get(request.id)
            if request.adaptive and granted[i] > 0 and (known is None or not known.rest):
                awake.append(i)
            elif known is not None:
                known.awake = False
                known.rest_for(max(0, known.rest - 1), request)
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
            known.awake = False
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
        known, level = self._requests.get(request.id), self.cost_per_level(source)
        if known is None:
            return True
        own, next_token = known.sources[source], dict[int, float]()
        if not own.asked or not level or not any(drafts):
            return own.asked
        for draft in drafts:
            found = self._probabilities(known, draft, self._priors(known, draft))
            for token, parent, probability in zip(draft.tokens, draft.parents, found, strict=True):
                if parent < 0:
                    next_token[token] = max(probability, next_token.get(token, 0.0))
        uncovered = 1.0 - min(1.0, sum(next_token.values()))
        return uncovered * own.acceptance.level([()], own.own) * self._token_s > level

    def cost_per_level(self, source: str) -> float:
        known = self._level.get(source)
        return 0.0 if known is None else known.seconds or 0.0

    def should_continue(self, request: Request, source: str, paths: Sequence[Sequence[float]]) -> bool:
        """Whether a level more is affordable and expected to save more time than it takes; ``select`` judges rows."""
        known, level = self._requests.get(request.id), self.cost_per_level(source)
        if known is None:
            return True
        self._growing.add(source)
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
        known = self._requests.get(request.id)
        if known is None:
            return
        weight = self._settings.weight
        for name, cost in costs.items():
            source, levels, read_s = known.source(name), max(1, cost.levels), 0.0
            source.proposed = True
            if source.started:
                counted = levels * self._level.setdefault(name, TypicalSeconds(weight)).observe(cost.seconds / levels)
                self._proposal.setdefault(name, TypicalSeconds(weight)).observe(counted)
            else:  # it reads at the expense of the domain, which lends it to the request
                first, tokens, counted = (
                    name not in self._reading,
                    _tokens_read(request),
                    levels * self.cost_per_level(name),
                )
                reading = self._reading.setdefault(name, TypicalSeconds(weight))
                read_s = tokens * reading.observe(max(0.0, cost.seconds - counted) / tokens)
                if first:
                    read_s = 0.0
                else:
                    for account in source.accounts[:-1]:
                        account.left += read_s / self._token_s
                    counted += read_s
                source.started = True
            source.cost_s += counted
            self._charged_s += counted - read_s

    # -- after drafting ---------------------------------------------------------------------------------------------

    def select(
        self, requests: Sequence[Request], drafts: Sequence[Draft], num_tokens: Sequence[int], budgets: Sequence[int]
    ) -> list[Draft]:
        """The nodes worth scoring; drafts of requests that are not adaptive stay whole."""
        selected, fixed = list(drafts), list(num_tokens)
        proposals: dict[int, Proposal] = {}
        for i, (request, draft) in enumerate(zip(requests, drafts, strict=True)):
            if request.adaptive and draft:
                known = self._requests[request.id]
                known.proposed, known.priors = draft, self._priors(known, draft)
                found = self._probabilities(known, draft, known.priors)
                affordable_s = {name: self._affordable_s(source) for name, source in known.sources.items()}
                proposals[i] = Proposal(draft, found, budgets[i], affordable_s)
            elif draft:
                fixed[i] += len(draft)
        if proposals:
            contexts = [request.num_computed_tokens for request in requests]
            room_s = max(0.0, self._room_s - self._settings.at_once * self._charged_s)
            chosen = select_nodes(proposals, fixed, contexts, self.cost, room_s, self._margin)
            for i in proposals:
                nodes = chosen.get(i, {})
                selected[i] = drafts[i].only(list(nodes)) if nodes else EMPTY
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
            self._cost.observe_outside(requests, self._drafted, seconds - self._proposing_s)

    def observe(self, request: Request, committed: Sequence[int], draft: Draft, path: Sequence[int]) -> None:
        """Learn which nodes of the proposal were right, scored or not, and what the accepted ones saved."""
        known = self._requests.get(request.id)
        self._own_time.decoded(request.id, len(committed), len(path), self._plain_s)
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
            self._learn(known, known.proposed, committed)
            known.proposed = EMPTY

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
        """That a source's proposal takes at least; 0 if nobody knows."""
        proposal = self._proposal.get(name)
        return self.cost_per_level(name) if name in self._growing else (proposal and proposal.seconds) or 0.0

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
        encoder, reading = self._encoders.get(name), self._reading.get(name)
        if (
            reading is not None
            and _tokens_read(request) * (reading.seconds or 0.0) > source.accounts[-1].left * self._token_s
        ):
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

    def _priors(self, known: RequestState, draft: Draft) -> list[float]:
        """Of each node to be accepted if its parent is, as far as its source says."""
        scores: Sequence[float | None] = draft.scores or [None] * len(draft)
        ranks = [0] * len(draft) if draft.scores else ranks_of(draft.parents)
        return [
            known.source(draft.source_of(node)).acceptance.prior(depth, score, rank)
            for node, (depth, score, rank) in enumerate(zip(draft.depths, scores, ranks, strict=True))
        ]

    def _probabilities(self, known: RequestState, draft: Draft, priors: Sequence[float]) -> list[float]:
        """Of each node to be on the accepted path: the product along its path."""
        out: list[float] = []
        for node, (parent, prior) in enumerate(zip(draft.parents, priors, strict=True)):
            source = known.source(draft.source_of(node))
            own = source.acceptance.token(prior, source.own)
            out.append(own if parent < 0 else own * out[parent])
        return out

    def _learn(self, known: RequestState, draft: Draft, committed: Sequence[int]) -> None:
        """Compare a proposal with the tokens that were committed instead or because of it."""
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
            source = known.source(name)
            source.acceptance.learn(known.priors[node], source.own, accepted)
            levels[name, depth] = accepted or levels.get((name, depth), False)
        for (name, depth), found in levels.items():
            source = known.source(name)
            source.acceptance.learn_level(depth, source.own, found)


def _tokens_read(request: Request) -> int:
    """That a source may have to read before its first proposal."""
    return request.input.positions or len(request.tokens)
