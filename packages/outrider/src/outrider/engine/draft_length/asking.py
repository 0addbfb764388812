"""Which sources of a request are asked, and how far their drafts grow: what may be lost, and what is likely won."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from outrider.drafters.cost import DraftingCost
from outrider.engine.draft_length.accounts import RequestState, SourceState
from outrider.engine.draft_length.cost import StepCost
from outrider.engine.draft_length.row_counts import ROWS
from outrider.engine.draft_length.settings import DraftLengthSettings
from outrider.engine.draft_length.source_times import SourceTimes
from outrider.engine.request import Request
from outrider.verify.draft import Draft

_LONGEST_REST = 16  # steps, in which what drafts cost may change, or another request may earn for all


@dataclass(frozen=True, slots=True)
class StepPrices:
    """What a step takes without drafts, and what its drafts may take."""

    cost: StepCost
    requests: int
    plain_s: float  # of the step without drafts
    room_s: float  # that its drafts may take from all of its requests
    margin: float  # times what a row takes that it must be expected to save

    @property
    def token_s(self) -> float:
        """Seconds that a token costs without drafts."""
        return self.plain_s / self.requests


class Asking:
    """Decides for one request at a time, by the prices of the step at hand."""

    def __init__(self, settings: DraftLengthSettings, times: SourceTimes) -> None:
        self._settings, self._times = settings, times
        self.prices = StepPrices(StepCost([0.0] * len(ROWS), [0.0] * len(ROWS)), 1, 0.0, 0.0, 1.0)
        """Of the step at hand."""

    def decide(self, request: Request, known: RequestState, room_s: float) -> float:
        """Decide which sources of a request are asked, or for how long none is.

        Returns the seconds that their proposals are expected to take, of the ``room_s`` that are left.
        """
        promised_s, row_s = 0.0, self._row_s(request)
        for name, source in known.sources.items():
            taken_s = self._proposal_s(name)
            source.pause -= 1
            source.asked = (
                source.pause < 0
                and promised_s + taken_s + row_s <= room_s
                and self._can_ask(request, name, source, taken_s + row_s)
            )
            promised_s += taken_s if source.asked else 0.0
        if not known.asked:
            known.rest_for(self._steps_to_rest(known, row_s), request)
            for source in known.sources.values():
                source.pause -= known.rest
        return promised_s

    def _row_s(self, request: Request) -> float:
        """Seconds that scoring a first node adds."""
        cost = self.prices.cost
        return cost.row(self.prices.requests, 1, request.num_computed_tokens) + cost.drafting

    def _steps_to_rest(self, known: RequestState, row_s: float) -> int:
        """Steps in which no source can be asked yet, if each decodes a token: to ask costs time too, in every step."""
        share, prices = self._settings.at_once * self._settings.loss_share, self.prices
        steps = list[float]()
        for name, source in known.sources.items():
            taken_s = self._proposal_s(name) + row_s
            missing = (taken_s - self.affordable_s(source)) / (share / len(known.sources) * prices.token_s)
            steps.append(max(source.pause, missing - 1, (taken_s - prices.room_s) / (share * prices.plain_s) - 1))
        return max(0, min(_LONGEST_REST, math.ceil(min(steps))))

    def asks(self, known: RequestState, source: str, drafts: Sequence[Draft]) -> bool:
        """Whether it can be afforded, and the tokens it may add where ``drafts`` are likely to fail save more time than
        it takes."""
        own, next_token, level = known.sources[source], dict[int, float](), self._times.level(source)
        if not own.asked or not level or not any(drafts):
            return own.asked
        for draft in drafts:
            found = known.probabilities(draft, known.priors_of(draft))
            for token, parent, probability in zip(draft.tokens, draft.parents, found, strict=True):
                if parent < 0:
                    next_token[token] = max(probability, next_token.get(token, 0.0))
        uncovered = 1.0 - min(1.0, sum(next_token.values()))
        return uncovered * own.acceptance.level([()], own.own) * self.prices.token_s > level

    def should_continue(self, known: RequestState, source: str, paths: Sequence[Sequence[float]]) -> bool:
        """Whether a level more is affordable and expected to save more time than it takes."""
        self._times.grows(source)
        own, levels, level = known.sources[source], len(paths[0]), self._times.level(source)
        if not level:
            return levels < 2  # nobody knows yet what one takes
        if (levels + 1) * level > self.affordable_s(own):
            return False
        return own.acceptance.level(paths, own.own) * self.prices.token_s > level

    def learn_worth(self, known: RequestState, draft: Draft, path: Sequence[int]) -> None:
        """Learn what asking each source was worth; one that is worth less than it takes is asked less often."""
        token_s = self.prices.token_s
        for name, source in known.sources.items():
            if source.proposed:
                saved = sum(known.source(draft.source_of(node)) is source for node in path)
                source.value(saved - source.rows_s / token_s)
                short = self._proposal_s(name) / token_s - source.worth.mean
                source.pause = min(_LONGEST_REST, math.ceil(max(0.0, short) / self._settings.looking)) - 1

    def affordable_s(self, source: SourceState) -> float:
        """Seconds that the source may spend next in this step: a share of what its accounts and the step leave it.

        A source that spent all on a proposal could score none of it.
        """
        left_s = min([account.left for account in source.accounts]) * self.prices.token_s
        return self._settings.at_once * (left_s - source.cost_s)

    def _proposal_s(self, name: str) -> float:
        """That asking a source takes at least, as far as is known."""
        return self._times.proposal(name) + self.prices.cost.asking

    def _can_ask(self, request: Request, name: str, source: SourceState, taken_s: float) -> bool:
        """Whether a proposal and a scored node of it can be afforded, and before the first one what it reads too.

        ``taken_s``: seconds of the two.
        """
        if taken_s > self.affordable_s(source):
            return False
        if source.started:
            return True
        if request.input.positions:
            self._times.time_encoder(name)
        encoder, reading = self._times.encoder(name), self._times.reading(name)
        if reading is not None and tokens_read(request) * reading > source.accounts[-1].left * self.prices.token_s:
            return False
        return encoder is None or not request.input.positions or self._can_pay(request, encoder)

    def _can_pay(self, request: Request, encoder: DraftingCost) -> bool:
        """Whether drafts that are always right save what their encoder takes, in half of the tokens there may be."""
        cost, together = self.prices.cost, self.prices.requests
        levels = [n - 1 for n in ROWS if 1 < n <= 1 + request.depth_limit]
        context = [request.num_computed_tokens] * together
        step_s = [cost.pass_seconds([1 + n] * together, context) + n * encoder.level for n in levels]
        outside_s = cost.outside(together) + cost.drafting * together
        fastest = min([(seconds + outside_s) / (1 + n) / together for n, seconds in zip(levels, step_s, strict=True)])
        tokens = min(request.params.max_tokens, request.max_seq_len - request.prompt_length) / 2
        return tokens * (self.prices.token_s - fastest) > encoder.reading(request.input)


def tokens_read(request: Request) -> int:
    """That a source may have to read before its first proposal."""
    return request.input.positions or len(request.tokens)
